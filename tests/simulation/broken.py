"""Locks that are broken on purpose, each in one way that real libraries are: the checks have to find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.errors import LossReason, OutcomeUnknown
from dibs.holder import Holder
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.store import Ask, Busy, Claim, Grant
from dibs.testing.faults import FarStore
from dibs.testing.simulation.runtime import SimulatedRuntime


class DeletesWithoutCompare(MemoryServer):
    """Release frees the lock, whoever holds it: DEL instead of a script that compares the token."""

    def release(self, space: str, name: str, token: str) -> LossReason | None:
        held = self._records.get((space, name))
        return super().release(space, name, held.token if held and held.token else token)


class RenewsWhatIsOver(MemoryServer):
    """A renewal of a lease that ended takes the lock again: PEXPIRE or SET without a look at who has it."""

    def renew(self, space: str, name: str, token: str, fence: int, ttl: float, longest: float) -> LossReason | None:
        record = self._records.get((space, name))
        if record is not None and (record.token is None or self._now() >= record.expires_at):
            record.token, record.fence, record.expires_at = token, max(fence, record.fence), self._now() + ttl
            return None
        return super().renew(space, name, token, fence, ttl, longest)


class CountsFences(MemoryServer):
    """The fence is a plain counter: it begins again when the memory is lost."""

    def __init__(self, now: Any, wall_us: Any) -> None:
        super().__init__(now, lambda: 0)


class GivesOneFenceToAll(MemoryServer):
    """The fence is the moment in whole seconds, which two grants may share."""

    def _give(self, record: Any, who: Holder, token: str, expires_at: float) -> int:
        super()._give(record, who, token, expires_at)
        record.fence = self.wall_us() // 1_000_000
        return int(record.fence)


class KeepsTheFirstEnd(MemoryServer):
    """A repeated ask is answered with the grant of the first, whose ttl has run since then."""

    def _grant(
        self, space: str, who: Holder, token: str, ttl: float, *, queue: bool
    ) -> int | tuple[Holder | None, float]:
        record = self._records.get((space, who.name))
        if record is not None and record.token == token and record.expires_at > self._now():
            return record.fence
        return super()._grant(space, who, token, ttl, queue=queue)

    def grant(self, space: str, who: Holder, token: str, ttl: float, **how: bool) -> int | tuple[Holder | None, float]:
        return self._grant(space, who, token, ttl, **how)


class LeavesNoMark(MemoryServer):
    """A token is given back, and nothing is remembered of it: an ask that was sent before is granted when it comes."""

    def give_back(self, space: str, name: str, token: str, mark: float) -> LossReason | None:
        return self.release(space, name, token)


class AddsTheTtl(MemoryServer):
    """A renewal does not count from when it comes, but from the end of before."""

    def renew(self, space: str, name: str, token: str, fence: int, ttl: float, longest: float) -> LossReason | None:
        record = self._records.get((space, name))
        before = record.expires_at if record is not None else 0.0
        reason = super().renew(space, name, token, fence, ttl, longest)
        if reason is None and record is not None:
            record.expires_at = before + ttl
        return reason


class TrustsTheWallClock(SimulatedRuntime):
    """Validity is measured on a wall clock, which somebody sets back by a second."""

    def now(self) -> float:
        return super().now() - self._set_back()

    def true(self, moment: float) -> float:
        return super().true(moment + self._set_back())

    def _set_back(self) -> float:
        return 1.0 if self.world.now > 1.5 else 0.0


class TakesUnknownForRefused(FarStore):
    """An ask whose answer never came counts as refused: what it may have taken is never given back."""

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        try:
            return await super().grant(ask, within)
        except OutcomeUnknown:
            return Busy(None, 0.1)


class ForgetsToGiveBack(FarStore):
    """The release of what is unknown is never sent, as where a lock forgets its token before the request."""

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        if self._network.world.chance.random() < 0.5:
            return None
        return await super().release(name, token, within)


class GrantsByHint(FarStore):
    """Whoever is hinted at believes that it holds the lock."""

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        before = self._runtime.now()
        await super().wait(ask, busy, within)
        if self._runtime.now() - before < min(within, 0.4):
            self._network.late.add("hinted " + ask.token)

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        if "hinted " + ask.token in self._network.late:
            return Grant(self._network.server.wall_us(), ask.ttl)
        return await super().grant(ask, within)


class CountsFromTheAnswer(FarStore):
    """The ttl is counted from when the answer came; made here by adding to it what the answer took."""

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        sent_at = self._runtime.now()
        answer = await super().grant(ask, within)
        if isinstance(answer, Grant):
            return answer._replace(ttl=answer.ttl + self._runtime.now() - sent_at)
        return answer


class SaysYesToRenewals(FarStore):
    """A renewal whose answer never came counts as done."""

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        try:
            return await super().renew(claims, within)
        except OutcomeUnknown:
            return [None] * len(claims)
