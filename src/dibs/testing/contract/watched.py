"""A store that passes every step on to another, counts them, and spoils those it is told to spoil."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState, Record
from dibs.ports.db.session import Session
from dibs.runtime import Runtime
from dibs.stores.record_store import RecordStore, record_store
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

T = TypeVar("T")

Fault: TypeAlias = Callable[[Callable[[], Awaitable[Any]], float], Awaitable[Any]]
"""Called instead of a step, with the step and its *within*; it may carry the step out, or not."""


async def refuse(step: Callable[[], Awaitable[Any]], within: float) -> Any:
    """Fail before anything is sent."""
    raise StoreUnavailable("watched", "the test lets this step fail")


async def drop_reply(step: Callable[[], Awaitable[Any]], within: float) -> Any:
    """Carry the step out, and lose its answer."""
    await step()
    raise OutcomeUnknown("watched", "the test drops this answer")


async def drop_request(step: Callable[[], Awaitable[Any]], within: float) -> Any:
    """Lose the request, in a way that looks from here like a lost answer."""
    raise OutcomeUnknown("watched", "the test drops this request")


def hang(runtime: Runtime) -> Fault:
    """Return a fault that takes all of *within*, as a server does that accepts and never answers."""

    async def wait(step: Callable[[], Awaitable[Any]], within: float) -> Any:
        await runtime.sleep(within)
        raise OutcomeUnknown("watched", f"no answer within {within:g} s")

    return wait


class Watched(RecordStore):
    """Stands between a client and its store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.guarantees = store.guarantees  # type: ignore[misc]
        self.shortest_ttl, self.longest_ttl = store.shortest_ttl, store.longest_ttl  # type: ignore[misc]
        self.asked: Counter[str] = Counter()
        """How often each step was asked for, by its name."""
        self.budgets: list[tuple[str, float]] = []
        """Each step and the *within* it was given."""
        self._next: dict[str, deque[Fault]] = {}
        self._always: dict[str, Fault] = {}

    def spoil(self, step: str, fault: Fault) -> None:
        """Let the next *step* that has no fault yet meet *fault*."""
        self._next.setdefault(step, deque()).append(fault)

    def spoil_every(self, step: str, fault: Fault) -> None:
        """Let every *step* meet *fault* until `heal`."""
        self._always[step] = fault

    def heal(self) -> None:
        """From now on all steps are passed on."""
        self._next.clear()
        self._always.clear()

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Pass it on."""
        return await self._do("grant", lambda: self._store.grant(ask, within), within)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """Pass it on."""
        return await self._do("renew", lambda: self._store.renew(claims, within), within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Pass it on."""
        return await self._do("release", lambda: self._store.release(name, token, within), within)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Pass it on."""
        await self._do("wait", lambda: self._store.wait(ask, busy, within), within)

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Pass it on."""
        return await self._do("evict", lambda: self._store.evict(name, fence, reason, within), within)

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Pass it on."""
        return await self._do("holders", lambda: self._store.holders(prefix, within), within)

    async def show(self, name: str, within: float) -> LockState:
        """Pass it on."""
        return await self._do("show", lambda: self._store.show(name, within), within)

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        """Pass it on."""
        return await self._do(
            "grant_unless_recorded", lambda: record_store(self._store).grant_unless_recorded(ask, after, within), within
        )

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Pass it on."""
        return await self._do("remember", lambda: record_store(self._store).remember(claim, data, keep, within), within)

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Pass it on."""
        return await self._do("finish", lambda: record_store(self._store).finish(claim, data, keep, within), within)

    async def finish_on(self, conn: Session, claim: Claim, data: bytes, keep: float) -> LossReason | None:
        """Pass it on."""
        return await self._do("finish_on", lambda: record_store(self._store).finish_on(conn, claim, data, keep), 0)

    async def record(self, name: str, within: float) -> Record | None:
        """Pass it on."""
        return await self._do("record", lambda: record_store(self._store).record(name, within), within)

    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        """Pass it on."""
        return await self._do("records", lambda: record_store(self._store).records(prefix, most, within), within)

    async def forget(self, name: str, fence: int, within: float) -> bool:
        """Pass it on."""
        return await self._do("forget", lambda: record_store(self._store).forget(name, fence, within), within)

    async def time(self, name: str, within: float) -> float:
        """Pass it on."""
        return await self._do("time", lambda: record_store(self._store).time(name, within), within)

    def queue_at_once(self, name: str) -> bool:
        """Pass it on."""
        return self._store.queue_at_once(name)

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Pass it on."""
        await self._do("attach", lambda: self._store.attach(claim, note, within), within)

    async def detach(self, claim: Claim, within: float) -> None:
        """Pass it on."""
        await self._do("detach", lambda: self._store.detach(claim, within), within)

    def compare(self, claim: Claim) -> object:
        """Pass it on."""
        return self._store.compare(claim)

    def on_loss(self, call: Callable[[str, str, LossReason], None]) -> None:
        """Pass it on."""
        self._store.on_loss(call)

    async def close(self) -> None:
        """Pass it on."""
        await self._store.close()

    def inheritable(self) -> tuple[int, ...]:
        """Pass it on."""
        return self._store.inheritable()

    def forked(self) -> None:
        """Pass it on."""
        self._store.forked()

    def __repr__(self) -> str:
        return repr(self._store)

    async def _do(self, name: str, step: Callable[[], Awaitable[T]], within: float) -> T:
        self.asked[name] += 1
        self.budgets.append((name, within))
        planned = self._next.get(name)
        fault = planned.popleft() if planned else self._always.get(name)
        answer: T = await (step() if fault is None else fault(step, within))
        return answer
