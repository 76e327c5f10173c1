"""Loops in a ``try`` that has to clean up after Ctrl-C: their jump back to the start is inside of it too.

CPython 3.12 and 3.13 leave the jump of some ``while condition:`` out of the ``try`` around it, and look for signals
just there (https://github.com/python/cpython/issues/130279). ``while True:`` with the condition inside is compiled as
it reads. Where a skipped ``finally`` costs a little memory at most, a loop may keep its condition; it is not listed.
"""

from __future__ import annotations

import dis
import itertools
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import pytest

from dibs.core.acquiring import Acquiring
from dibs.stores.postgres.advisory.waiting import WaitingSessions
from dibs.stores.redis.port.subscriber_blocking import BlockingSubscriber
from dibs.stores.redlock.admission import Admission
from dibs.stores.redlock.broadcast import Broadcast
from dibs.stores.redlock.store import RedlockStore

LOOPS: list[Callable[..., Any]] = [
    Acquiring.wait,  # its place among the waiters of this client would be taken for ever
    BlockingSubscriber.wait,  # the reading would be handed on to one who is gone
    WaitingSessions.take,
    WaitingSessions.step_out,  # its session would stay in the server's line, and get the lock
    Broadcast.ask,  # these three would not give their connections back
    RedlockStore.renew,
    Admission._say,
]


def lines_that_jump_out(code: CodeType) -> Iterator[int]:
    """The lines of loops that jump back into their ``try`` from outside."""
    covered = list(dis.Bytecode(code).exception_entries)  # type: ignore[attr-defined]
    instructions = list(dis.get_instructions(code))
    starts = {each.offset: each for each in instructions}

    def handler(offset: int) -> int | None:
        """Where an exception at *offset* leads; None if out of the function, or only through a coroutine's own end."""
        target = next((entry.target for entry in covered if entry.start <= offset < entry.end), None)
        return None if target is None or starts[target].opname == "CALL_INTRINSIC_1" else target

    for before, jump in itertools.pairwise(instructions):
        if jump.opname == "JUMP_BACKWARD" and jump.positions is not None and jump.positions.lineno is not None:
            expected = handler(before.offset)
            if expected is not None and handler(jump.argval) == expected != handler(jump.offset):
                yield jump.positions.lineno


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__qualname__)
def test_a_loop_jumps_back_inside_of_its_try(loop: Callable[..., Any]) -> None:
    assert list(lines_that_jump_out(loop.__code__)) == []
