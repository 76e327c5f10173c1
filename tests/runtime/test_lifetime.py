"""Who is told of a fork and of the end is not kept alive for it."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import weakref

from dibs.runtime import lifetime
from dibs.runtime.threads import ThreadRuntime


class Told:
    def __init__(self) -> None:
        self.times = 0

    def tell(self) -> None:
        self.times += 1


def test_nobody_is_kept_alive() -> None:
    told = Told()
    gone = weakref.ref(told)
    lifetime.after_fork(told.tell)
    lifetime.at_exit(told.tell)
    del told
    gc.collect()
    assert gone() is None


def test_the_forgotten_do_not_pile_up() -> None:
    gc.collect()
    before = len(lifetime._forked)  # servers of other tests with a name of their own, which stay
    for _ in range(1000):
        lifetime.after_fork(Told().tell)
    gc.collect()
    assert len(lifetime._forked) <= before


def test_each_is_told_once() -> None:
    told = Told()
    calls: lifetime.Calls = {}
    lifetime._add(calls, told.tell)
    lifetime._do(calls)
    assert told.times == 1


def test_a_child_is_told_and_its_parent_is_not() -> None:
    told = Told()
    lifetime.after_fork(told.tell)
    child = os.fork()
    if child == 0:
        os._exit(told.times)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert told.times == 0


def test_a_fork_that_python_was_not_told_of_is_noticed_once() -> None:
    told = Told()
    lifetime.after_fork(told.tell)
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        before = told.times
        lifetime.look()
        lifetime.look()
        os._exit(10 * before + told.times)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    lifetime.look()
    assert told.times == 0


def test_what_a_parent_wants_at_its_end_is_not_done_at_the_end_of_a_child() -> None:
    told = Told()
    lifetime.at_exit(told.tell)
    child = os.fork()
    if child == 0:
        lifetime._end()
        os._exit(told.times)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_children_draw_numbers_of_their_own() -> None:
    """Else all would try again at the same moment."""
    runtime, (reading, writing) = ThreadRuntime(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, repr(runtime.random()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) != repr(runtime.random()).encode()
    os.close(reading)
    os.close(writing)


def test_threads_may_add_at_the_same_time() -> None:
    def add(part: list[Told]) -> None:
        for each in part:
            lifetime.after_fork(each.tell)

    told = [Told() for _ in range(2000)]
    gc.collect()  # what other tests left must not go meanwhile
    before = len(lifetime._forked)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=add, args=(part,)) for part in (told[i::4] for i in range(4))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(lifetime._forked) == before + 2000


def test_a_fork_is_told_before_and_after_in_the_parent() -> None:
    before, after = Told(), Told()
    lifetime.around_fork(before.tell, after.tell)
    child = os.fork()
    if child == 0:
        os._exit(before.times * 10 + after.times)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
    assert (before.times, after.times) == (1, 1)
