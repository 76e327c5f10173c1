"""The embedded store between real processes: killed, stopped, forked, and many at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.errors import StoreUnavailable
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import Ask, Busy, Grant
from dibs.stores.sqlite.port.write_queue import Gate
from dibs.stores.sqlite.store import SQLiteStore, open_url
from tempo import took

from .crowd import Crowd

ATTEMPTS = 5


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    crowd = Crowd(tmp_path)
    yield crowd
    crowd.end()


def take(store: SQLiteStore, token: str, name: str = "x") -> int:
    asks, ask = 0, Ask(name, token, 30.0, "", True)
    while not isinstance(answer := run(store.grant(ask, 5.0)), Grant):
        asks += 1
        run(store.wait(ask, answer, 5.0))
    return asks + 1


def test_when_its_holder_is_killed_the_next_gets_the_lock_within_a_tenth_of_a_second(crowd: Crowd) -> None:
    delays = []
    for attempt in range(ATTEMPTS):
        holder, waiter = crowd.child(), crowd.child()
        holder.do("take('x', 'holder')")
        waiter.send(f"take('x', 'waiter{attempt}')")
        crowd.wait_for_line(1)
        began = time.monotonic()
        holder.signal(signal.SIGKILL)
        assert waiter.answer()
        delays.append(time.monotonic() - began)
        waiter.end()
        if delays[-1] < 0.1:
            break
    assert min(delays) < 0.1


def test_a_stopped_first_in_line_holds_up_others_no_longer_than_the_reservation(crowd: Crowd) -> None:
    crowd.ask("x", "holder")
    first, second = crowd.child(), crowd.child()
    first.send("take('x', 'first')")
    crowd.wait_for_line(1)
    second.send("take('x', 'second')")
    crowd.wait_for_line(2)
    first.signal(signal.SIGSTOP)
    began = time.monotonic()
    with took(1):
        run(crowd.store.release("x", "holder", 5.0))
        fence = second.answer()
    assert time.monotonic() - began > 0.09
    first.signal(signal.SIGCONT)
    second.do("release('x', 'second')")
    assert first.answer() > fence


def test_processes_are_served_in_the_order_in_which_they_came(crowd: Crowd) -> None:
    crowd.ask("x", "holder")
    children = [crowd.child() for _ in range(4)]
    for number, child in enumerate(children):
        child.send(f"take('x', '{number}')")
        crowd.wait_for_line(number + 1)
    run(crowd.store.release("x", "holder", 5.0))
    fences = []
    for number, child in enumerate(children):
        fences.append(child.answer())
        child.do(f"release('x', '{number}')")
    assert fences == sorted(fences)


def test_a_hundred_hand_overs_wake_one_waiter_each(crowd: Crowd, tmp_path: Path) -> None:
    crowd.ask("x", "holder")
    asks: list[int] = []

    def wait_in_line(number: int) -> None:
        store = open_url(f"sqlite://{crowd.path}", "", ThreadRuntime())
        asks.append(take(store, f"t{number}"))
        run(store.release("x", f"t{number}", 5.0))
        run(store.close())

    threads = [threading.Thread(target=wait_in_line, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    crowd.wait_for_line(100)
    run(crowd.store.release("x", "holder", 5.0))
    for thread in threads:
        thread.join(20)
    assert len(asks) == 100
    assert sum(asks) < 1000  # two each, one to get in line and one to take the lock; if each woke all, some 5,000


@pytest.mark.parametrize(
    "work", ["lambda: None", "lambda: run(store.close())", "lambda: take('other', 'forked')", "lambda: os._exit(0)"]
)
def test_whatever_a_forked_child_does_its_parent_keeps_the_lock(crowd: Crowd, work: str) -> None:
    parent = crowd.child()
    parent.do("take('x', 'parent')")
    assert parent.do(f"in_child({work})") == 0
    assert isinstance(crowd.ask("x", "u"), Busy)
    assert parent.do("release('x', 'parent')") is None
    assert isinstance(crowd.ask("x", "u"), Grant)


def test_a_forked_child_has_a_life_of_its_own(crowd: Crowd) -> None:
    parent = crowd.child()
    parent.do("take('x', 'parent')")
    parent.do("forked.append(os.fork()) or forked[0] or take('y', 'child')")
    os.kill(int(json.loads(json.dumps(_child_of(crowd)))), signal.SIGKILL)
    crowd.wait_until(lambda: isinstance(crowd.ask("y", "u"), Grant))
    assert isinstance(crowd.ask("x", "u"), Busy)


def _child_of(crowd: Crowd) -> int:
    crowd.wait_until(lambda: run(crowd.store.show("y", 5.0)).holder is not None)
    holder = run(crowd.store.show("y", 5.0)).holder
    assert holder is not None
    return holder.pid


def test_a_child_that_inherits_the_sign_of_life_keeps_the_lock_when_its_parent_is_killed(crowd: Crowd) -> None:
    parent = crowd.child()
    parent.do("take('x', 'parent')")
    pid = parent.do("subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, pass_fds=store.inheritable()).pid")
    parent.end()
    try:
        assert isinstance(crowd.ask("x", "u"), Busy)
    finally:
        os.kill(pid, signal.SIGKILL)
    crowd.wait_until(lambda: isinstance(crowd.ask("x", "u"), Grant))


def test_a_holder_whose_log_was_tidied_away_by_others_does_not_hold_beside_them(crowd: Crowd) -> None:
    holder = crowd.child()
    fence = holder.do("ask('x', 'holder')")
    # Closing the file drops the POSIX locks of the holder's own connection: SQLite's trap.
    holder.do("open(sys.argv[1][9:]).close()")
    run(crowd.store.close())  # the last one, as far as it can see, tidies the log away
    crowd.store = open_url(f"sqlite://{crowd.path}", "", ThreadRuntime())
    assert isinstance(crowd.ask("x", "u"), Busy)  # the grant was in the file
    assert isinstance(crowd.ask("y", "u"), Grant)
    assert holder.do("ask('y', 'holder')") == 0
    assert holder.do(f"run(store.renew([Claim('x', 'holder', {fence}, 30.0)], 5.0))") == [None]
    assert holder.do("release('x', 'holder')") is None
    assert isinstance(crowd.ask("x", "u"), Grant)


WRITER = """import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def writer(crowd: Crowd) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands still in the middle of a write."""
    arguments = [sys.executable, "-c", WRITER, str(crowd.path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        yield process
        process.kill()


def test_a_writer_that_was_stopped_makes_nobody_wait_longer_than_it_may(
    crowd: Crowd, writer: subprocess.Popen[bytes]
) -> None:
    for _ in range(ATTEMPTS):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="may be stopped"):
            crowd.ask("x", "t", within=0.2)
        taken = time.monotonic() - began
        if taken < 0.25:
            break
    assert 0.19 < taken < 0.25
    writer.kill()
    crowd.wait_until(lambda: isinstance(crowd.ask("x", "t", within=0.2), Grant))


def test_one_who_was_stopped_inside_the_gate_makes_nobody_fail(crowd: Crowd, writer: subprocess.Popen[bytes]) -> None:
    gate = Gate(f"{crowd.path}.d/gate")  # held by this process, which does not go on: the same as one stopped
    assert gate.enter(0)
    threading.Timer(0.1, writer.kill).start()
    with took(2):
        assert isinstance(crowd.ask("x", "t"), Grant)
    gate.leave()
    gate.end()


def test_processes_that_write_as_fast_as_they_can_get_equal_shares(crowd: Crowd) -> None:
    children = [crowd.child() for _ in range(3)]
    hammer = (
        "(lambda end: sum(1 for _ in iter(lambda: (ask('n{0}', 't'), release('n{0}', 't')) and "
        "runtime.now() < end, False)))(runtime.now() + 0.5)"
    )
    best = 100.0
    for _ in range(ATTEMPTS):
        for number, child in enumerate(children):
            child.send(hammer.format(number))
        turns = [child.answer() for child in children]
        best = min(best, max(turns) / max(1, min(turns)))
        if best < 2:
            break
    assert best < 2
