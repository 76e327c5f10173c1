"""Ctrl-C in the first bytecode of the end of a block, before any line of it: what the block held is given back."""

from __future__ import annotations

import _thread
import dis
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs._blocking.whole_try import KNOWN, whole_try
from dibs.guards import memory

WANTED = KNOWN or bool(os.environ.get("CI"))
"""In CI a Python whose exception tables nobody has looked at is a failure, so that somebody does: see whole_try."""

pytestmark = pytest.mark.skipif(not WANTED, reason="its exception table may be another: see whole_try")

CTRL_C = signal.SIGUSR1
"""Stands for SIGINT, which whoever runs the tests may ignore."""

BLOCKS: dict[str, Callable[[dibs.Client], Any]] = {
    "lock": lambda client: client.lock("a"),
    "shared": lambda client: client.lock("a", shared=True),
    "semaphore": lambda client: client.semaphore("a", 3, weight=2),
    "all": lambda client: client.all("a", "b"),
    "guarded": lambda client: client.lock("a").guarded(memory.MemoryGuard()),
    "lead": lambda client: client.election("a").lead(),
    "once": lambda client: client.once("a", slot="monday"),
    "idempotent": lambda client: client.idempotent("a"),
    "lease": lambda client: client.lock("a").acquire(),
    "leases": lambda client: client.all("a", "b").acquire(),
}


class Press:
    """``del press[CTRL_C]`` lets the signal come at the interpreter's next look for it.

    It does not look after this statement, as it does after a call. So when it is the last of a body, the next look is
    on entering `__exit__`.
    """

    __delitem__ = staticmethod(_thread.interrupt_main)


press: Any = Press()


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(CTRL_C, signal.default_int_handler)
    yield
    signal.signal(CTRL_C, before)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory:{tmp_path.name}"


def assert_came_on_entering_exit(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    assert (trace.tb_frame.f_code.co_name, trace.tb_lasti) == ("__exit__", 0)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("error", [None, ValueError("broken")], ids=["ends", "fails"])
def test_a_block_that_is_left_by_it_gives_back(kind: str, error: Exception | None, url: str) -> None:
    with dibs.connect(url) as client, dibs.connect(url) as other:
        block = BLOCKS[kind](client)
        with pytest.raises(KeyboardInterrupt) as raised, block:
            del press[CTRL_C]
            if error is not None:
                raise error
        assert_came_on_entering_exit(raised.value)
        assert raised.value.__context__ is error
        for name in ("a", "b"):
            other.lock(name).acquire(timeout=2).release()


def test_the_block_of_another_thread_goes_on(url: str) -> None:
    with dibs.connect(url) as client, dibs.connect(url) as other:
        slots, inside, leave = client.semaphore("a", 2), threading.Event(), threading.Event()
        ours = list[dibs.Lease]()

        def hold() -> None:
            with slots as lease:
                ours.append(lease)
                inside.set()
                leave.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        assert inside.wait(10)
        with pytest.raises(KeyboardInterrupt), slots:
            del press[CTRL_C]
        other.semaphore("a", 2).acquire(timeout=2)
        assert other.semaphore("a", 2).try_acquire() is None
        ours[0].check()
        leave.set()
        thread.join(10)


def test_the_block_around_it_goes_on(url: str) -> None:
    with dibs.connect(url) as client, client.lock("outer") as outer:
        with pytest.raises(KeyboardInterrupt), client.lock("inner"):
            del press[CTRL_C]
        client.lock("inner").acquire(timeout=2).release()
        outer.check()


def test_a_lease_that_was_given_back_in_the_block_is_not_anothers(url: str) -> None:
    with dibs.connect(url) as client, dibs.connect(url) as other:
        with pytest.raises(KeyboardInterrupt), client.lock("a") as lease:
            lease.release()
            theirs = other.lock("a").acquire()
            del press[CTRL_C]
        assert client.lock("a").try_acquire() is None
        theirs.release()


def short() -> None:
    try:
        press.a()
    except BaseException as error:
        press.b(error)


def long() -> None:
    try:
        press.a(press.b, press.c, press.d, press.e, press.f, press.g, press.h, press.i, press.j, press.k, press.l)
        press.a(press.b, press.c, press.d, press.e, press.f, press.g, press.h, press.i, press.j, press.k, press.l)
    finally:
        press.a(press.b, press.c, press.d, press.e, press.f, press.g, press.h, press.i, press.j, press.k, press.l)
        press.a(press.b, press.c, press.d, press.e, press.f, press.g, press.h, press.i, press.j, press.k, press.l)


def test_this_python_is_known() -> None:
    assert KNOWN, "look at its exception tables, and then add it to whole_try.KNOWN"


def handlers(function: Callable[[], None]) -> list[Any]:
    """From where to where, to which handler, with what on the stack."""
    code: Any = dis.Bytecode(function)
    return list(code.exception_entries)


@pytest.mark.parametrize("function", [short, long])
def test_the_try_then_covers_the_function_from_its_start(function: Callable[[], None]) -> None:
    before = handlers(function)
    first, *others = handlers(whole_try(function))
    assert (first.start, first.end) == (0, before[0].start)
    assert first[2:] == before[0][2:]
    assert others == before
