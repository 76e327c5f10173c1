"""The runtime of blocking code: its events, its owners, its jobs."""

from __future__ import annotations

import os
import threading
import time

import pytest

from dibs.runtime import run
from dibs.runtime.threads import ThreadEvent, ThreadRuntime


def beside(event: ThreadEvent, timeout: float | None, answers: list[bool]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(run(event.wait(timeout))), daemon=True)
    thread.start()
    return thread


def test_an_event_wakes_all_who_wait() -> None:
    event, answers = ThreadEvent(), list[bool]()
    threads = [beside(event, None, answers) for _ in range(5)]
    time.sleep(0.01)
    event.set()
    for thread in threads:
        thread.join(5)
    assert answers == [True] * 5


def test_an_event_that_is_set_lets_everybody_pass() -> None:
    event = ThreadEvent()
    event.set()
    assert run(event.wait(None))
    assert event.is_set()
    event.clear()
    assert not event.is_set()
    assert not run(event.wait(0))


@pytest.mark.parametrize("timeout", [-1, 0, 0.02])
def test_a_wait_ends_with_its_timeout(timeout: float) -> None:
    event, began = ThreadEvent(), time.monotonic()
    assert not run(event.wait(timeout))
    assert time.monotonic() - began >= max(0, timeout) - 0.001
    assert event._waiting == []


def test_a_very_long_wait_is_a_wait() -> None:
    event, answers = ThreadEvent(), list[bool]()
    thread = beside(event, 1e30, answers)
    time.sleep(0.01)
    event.set()
    thread.join(5)
    assert answers == [True]


def test_no_set_is_missed_however_close_it_comes() -> None:
    for _ in range(300):
        event, answers = ThreadEvent(), list[bool]()
        threads = [beside(event, 5, answers), beside(event, 5, answers)]
        setters = [threading.Thread(target=event.set) for _ in range(2)]
        for thread in setters:
            thread.start()
        for thread in [*threads, *setters]:
            thread.join(5)
        assert answers == [True, True]


def test_each_thread_is_somebody_else_also_with_a_number_that_was_used_before() -> None:
    runtime, seen = ThreadRuntime(), []
    for _ in range(50):
        thread = threading.Thread(target=lambda: seen.append(runtime.current()))
        thread.start()
        thread.join()
    assert len({id(owner) for owner in seen}) == 50
    assert runtime.current() is runtime.current()


def test_tokens_are_never_the_same() -> None:
    runtime = ThreadRuntime()
    tokens = {runtime.token() for _ in range(10_000)}
    assert len(tokens) == 10_000
    assert {len(token) for token in tokens} == {32}


def test_a_job_runs_beside_and_can_be_waited_for() -> None:
    runtime, done = ThreadRuntime(), runtime_event()

    async def main() -> None:
        done.set()

    job = runtime.spawn(main, "test")
    run(job.join(5))
    assert done.is_set()


def runtime_event() -> ThreadEvent:
    return ThreadRuntime().event()


def test_a_pipe_is_waited_for_no_longer_than_asked() -> None:
    runtime = ThreadRuntime()
    reading, writing = os.pipe()
    try:
        assert not run(runtime.readable(reading, 0.01))
        os.write(writing, b"x")
        assert run(runtime.readable(reading, 5))
    finally:
        os.close(reading)
        os.close(writing)
