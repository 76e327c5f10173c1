"""Ctrl-C at each moment at which CPython looks for it, in each public construct: what was granted is given back.

The signal is raised before each instruction after which the interpreter may look: a call, a jump back, the start of a
function. The exception is kept, as a debugger or a logger does, and with it every frame that refers to the lease.
"""

from __future__ import annotations

import dis
import gc
import itertools
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import dibs
from dibs.guards import memory
from test_blocking_ctrl_c import CTRL_C, WANTED, handler, press, url

__all__ = ["handler", "url"]  # fixtures

pytestmark = [
    pytest.mark.skipif(not WANTED, reason="the first moment of the end of a block stays open there: see whole_try"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),  # Ctrl-C came before its first step
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TTL = 3600.0
"""Seconds: what only the ttl frees is not free while the test waits."""

PATIENCE = 30.0
"""Seconds: what the keeper gives back is free long before."""

SOURCE = str(Path(dibs.__file__).parent)

LOOKED_AFTER = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "CALL_INTRINSIC_1", "JUMP_BACKWARD", "BEFORE_WITH", "RESUME"}
"""Instructions after which CPython looks for signals, or in whose callee it does."""


class Stage(NamedTuple):
    """What a story plays on."""

    client: dibs.Client
    other: dibs.Client
    """Another client, which holds the lock *taken*."""
    texts: list[str]
    """Detached leases: the first is on the lock *left*."""


Story = Callable[[Stage], None]


def lock(stage: Stage) -> None:
    with stage.client.lock("a", ttl=TTL):
        pass


def shared(stage: Stage) -> None:
    with stage.client.lock("a", ttl=TTL, shared=True):
        pass


def semaphore(stage: Stage) -> None:
    with stage.client.semaphore("a", 3, weight=2, ttl=TTL):
        pass


def everything(stage: Stage) -> None:
    with stage.client.all("a", "b", ttl=TTL):
        pass


def everything_but_one(stage: Stage) -> None:
    with suppress(dibs.NotAcquired):
        stage.client.all("a", "taken", ttl=TTL).acquire(timeout=0)


def guarded(stage: Stage) -> None:
    with stage.client.lock("a", ttl=TTL).guarded(memory.MemoryGuard()):
        pass


def lead(stage: Stage) -> None:
    with stage.client.election("a", ttl=TTL).lead():
        pass


def run_for_a_term(stage: Stage) -> None:
    election = stage.client.election("a", ttl=TTL)
    election.run(lambda term: election.stop())


def once(stage: Stage) -> None:
    with stage.client.once("a", slot="monday", ttl=TTL):
        pass


def once_and_failed(stage: Stage) -> None:
    with pytest.raises(ValueError, match="broken"), stage.client.once("a", slot="monday", ttl=TTL):
        raise ValueError("broken")


def idempotent(stage: Stage) -> None:
    with stage.client.idempotent("a", ttl=TTL) as call:
        if not call.replayed:
            call.done("result")


def idempotent_without_result(stage: Stage) -> None:
    with stage.client.idempotent("a", ttl=TTL):
        pass


def idempotent_and_failed(stage: Stage) -> None:
    with pytest.raises(ValueError, match="broken"), stage.client.idempotent("a", ttl=TTL):
        raise ValueError("broken")


def locked_function(stage: Stage) -> None:
    stage.client.locked("a", ttl=TTL)(lambda: None)()


def once_function(stage: Stage) -> None:
    stage.client.once("a", slot="monday", ttl=TTL)(lambda: None)()


def idempotent_function(stage: Stage) -> None:
    stage.client.idempotent("a", ttl=TTL)(lambda: None)()


def lease(stage: Stage) -> None:
    with stage.client.lock("a", ttl=TTL).acquire():
        pass


def lease_tried(stage: Stage) -> None:
    taken = stage.client.lock("a", ttl=TTL).try_acquire()
    assert taken is not None
    with taken:
        pass


def leases(stage: Stage) -> None:
    with stage.client.all("a", "b", ttl=TTL).acquire():
        pass


def released(stage: Stage) -> None:
    lease = stage.client.lock("a", ttl=TTL).acquire()
    try:
        lease.release()
    except KeyboardInterrupt:
        lease.release()
        raise


def leases_released(stage: Stage) -> None:
    leases = stage.client.all("a", "b", ttl=TTL).acquire()
    try:
        leases.release()
    except KeyboardInterrupt:
        leases.release()
        raise


def detached(stage: Stage) -> None:
    with stage.client.lock("a", ttl=TTL).acquire() as lease:
        stage.texts.append(lease.to_str())
        lease.detach()


def resumed(stage: Stage) -> None:
    with stage.client.resume(stage.texts[0]):
        pass


STORIES: list[Story] = [
    *(lock, shared, semaphore, everything, everything_but_one, guarded, lead, run_for_a_term),
    *(once, once_and_failed, idempotent, idempotent_without_result, idempotent_and_failed),
    *(locked_function, once_function, idempotent_function),
    *(lease, lease_tried, leases, released, leases_released, detached, resumed),
]


class Presser:
    """Presses Ctrl-C before the instruction number *at* of our code after which CPython looks for it."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, set[tuple[object, int]]()
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.look

    def look(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode" and len(self.seen) < self.at and is_looked_after(frame):
            self.seen.add((frame.f_code, frame.f_lasti))
            if len(self.seen) == self.at:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}, instruction {frame.f_lasti}"
                sys.settrace(None)  # or the signal would come in here, at the next instruction
                del press[CTRL_C]  # the last instruction here: see Press
                return None
        return self.look


_looked_after: dict[object, set[int]] = {}


def is_looked_after(frame: FrameType) -> bool:
    code = frame.f_code
    if code not in _looked_after:
        _looked_after[code] = {each.offset for each in dis.get_instructions(code) if each.opname in LOOKED_AFTER}
    return frame.f_lasti in _looked_after[code]


def interrupted(story: Story, stage: Stage, at: int) -> tuple[str, BaseException | None]:
    """Play *story* with Ctrl-C in its moment number *at*; tell where that was, and what came out."""
    presser, before = Presser(at), sys.gettrace()
    try:
        try:
            sys.settrace(presser)
            story(stage)
        finally:
            sys.settrace(before)
    except KeyboardInterrupt as error:
        return presser.where, error
    return presser.where, None


def remains(stage: Stage) -> list[str]:
    """What is not as it was before."""
    core = stage.client._core
    held = [lease for lease in core._context.held.leases() if lease.lost._can_happen]
    found = [repr(what) for what in (held, core._context.open_blocks._blocks, core._context.waiters._queues) if what]
    for text in stage.texts:
        with suppress(dibs.LeaseLost):
            stage.other.resume(text).release()  # nobody came to resume it
    for name in ("a", "b", "left"):
        try:
            stage.other.lock(name).acquire(timeout=PATIENCE).release()
        except dibs.NotAcquired as taken:
            found.append(str(taken))
    return found


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_ctrl_c_at_any_moment_keeps_nothing(story: Story, url: str) -> None:
    kept, faults = list[BaseException](), list[str]()
    for at in itertools.count(1):
        with dibs.connect(url, namespace=str(at)) as client, dibs.connect(url, namespace=str(at)) as other:
            taken = other.lock("taken", ttl=TTL).acquire()
            stage = Stage(client, other, [other.lock("left", ttl=TTL).acquire().detach()])
            where, error = interrupted(story, stage, at)
            if not where:
                break
            if error is not None:
                kept.append(error)
            faults += [f"Ctrl-C in {where} keeps {what}" for what in remains(stage)]
            taken.release()
    count = len(kept)
    del error
    kept.clear()
    gc.collect()  # here, where coroutines that were never awaited are expected, and not in another test
    assert not faults, "\n".join(faults)
    assert count > 20
