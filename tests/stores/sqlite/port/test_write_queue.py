"""The gate lets one in at a time, and never makes anybody wait longer than it wants to."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dibs.stores.sqlite.port.write_queue import Gate


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate(str(tmp_path / "gate")))
        return made[-1]

    yield make
    for gate in made:
        gate.end()


def test_one_is_inside_at_a_time(gates: Callable[[], Gate]) -> None:
    a, b = gates(), gates()
    assert a.enter(0)
    assert not b.enter(0.01)
    a.leave()
    assert b.enter(5)
    b.leave()


def test_who_waits_gets_in_when_the_other_leaves(gates: Callable[[], Gate]) -> None:
    a, b = gates(), gates()
    assert a.enter(0)
    threading.Timer(0.02, a.leave).start()
    assert b.enter(5)
    b.leave()


def test_who_gave_up_does_not_keep_others_out(gates: Callable[[], Gate]) -> None:
    a, b, c = gates(), gates(), gates()
    assert a.enter(0)
    assert not b.enter(0.01)
    a.leave()  # b's helper gets it, finds nobody, and lets go
    assert c.enter(5)
    c.leave()


def test_who_gave_up_takes_its_old_place_in_line_again(gates: Callable[[], Gate]) -> None:
    a, b = gates(), gates()
    assert a.enter(0)
    assert not b.enter(0.01)
    assert not b.enter(0.01)
    a.leave()
    assert b.enter(5)
    b.leave()
    assert b.enter(5)
    b.leave()


def test_ending_while_in_line_lets_the_helper_go_by_itself(gates: Callable[[], Gate], tmp_path: Path) -> None:
    a, b = gates(), Gate(str(tmp_path / "gate"))
    assert a.enter(0)
    assert not b.enter(0.01)
    b.end()
    helper = b._helper
    assert helper is not None
    a.leave()
    helper.join(5)
    assert not helper.is_alive()


def test_a_gate_that_was_never_waited_for_has_no_thread(gates: Callable[[], Gate]) -> None:
    a = gates()
    for _ in range(3):
        assert a.enter(0)
        a.leave()
    assert a._helper is None


def test_many_threads_are_inside_one_after_the_other(gates: Callable[[], Gate]) -> None:
    inside, most = 0, 0

    def pass_through(gate: Gate) -> None:
        nonlocal inside, most
        for _ in range(20):
            assert gate.enter(30)
            inside += 1
            most = max(most, inside)
            time.sleep(0)
            inside -= 1
            gate.leave()

    threads = [threading.Thread(target=pass_through, args=(gates(),)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1


def test_ctrl_c_at_any_moment_leaves_it_usable(gates: Callable[[], Gate]) -> None:
    a, b = gates(), gates()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(400):
            assert a.enter(5)
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.0004))
                while True:
                    b.enter(0.0001)
            except KeyboardInterrupt:
                b.leave()
            a.leave()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert b.enter(5)
    b.leave()
