"""Who is told of a fork and of the end is not kept alive for it."""

from __future__ import annotations

import gc
import os
import weakref

from dibs.runtime import lifetime


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
    for _ in range(1000):
        lifetime.after_fork(Told().tell)
    gc.collect()
    lifetime.after_fork(Told().tell)
    assert len(lifetime._forked) < 500


def test_each_is_told_once() -> None:
    told = Told()
    calls: list[weakref.WeakMethod[object]] = []  # type: ignore[type-var]
    lifetime._add(calls, told.tell)  # type: ignore[arg-type]
    lifetime._do(calls)  # type: ignore[arg-type]
    assert told.times == 1


def test_a_child_is_told_and_its_parent_is_not() -> None:
    told = Told()
    lifetime.after_fork(told.tell)
    child = os.fork()
    if child == 0:
        os._exit(told.times)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert told.times == 0
