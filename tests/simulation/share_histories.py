"""Histories in which several may hold a name: shared locks or a semaphore, and whole locks among them."""

from __future__ import annotations

from typing import Any

from workload import EVERYTHING, SOUND, History, Mix, Outcome, Parts

from dibs.core.client import Client
from dibs.core.lease import Lease
from dibs.errors import LossReason
from dibs.holder import Holder
from dibs.share import Share, share_of
from dibs.stores.memory.port.entry import Record
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.memory.port.shares import Refusal
from dibs.testing.history import Hold, violations_of_shares
from dibs.testing.simulation.runtime import SimulatedRuntime

SLOTS = 3


class PartsHistory(History):
    """One run of one seed: each name is shared or a semaphore, and is sometimes wanted whole."""

    def __init__(self, seed: int, mix: Mix = EVERYTHING, parts: Parts = SOUND) -> None:
        self.shared = dict[str, bool]()
        super().__init__(seed, mix, parts)

    def lock(self, client: Client) -> Any:
        name = self.pick(*self.names)
        shared = self.shared.setdefault(name, self.chance() < 0.5)
        ttl = self.ttl_of_lock()
        options: dict[str, Any] = {
            "ttl": ttl,
            "timeout": self.pick(None, 3 * self.ttl, self.ttl, 0.2, 0),
            "max_hold": self.pick(None, None, 1.2 * max(ttl, self.ttl)),
            "on_lost": self.pick("cancel", "cancel", "flag"),
        }
        if self.chance() < 0.3:
            return client.lock(name, **options)
        if shared:
            return client.lock(name, shared=True, **options)
        return client.semaphore(name, SLOTS, weight=self.pick(1, 1, 2, 3), **options)

    def record(self, process: SimulatedRuntime, lease: Lease, asked_at: float) -> None:
        super().record(process, lease, asked_at)
        self.holds[lease.name][-1].share = share_of(lease.token)
        self.counts["parts" if share_of(lease.token) else "wholes"] += 1

    async def work(self, process: SimulatedRuntime, lease: Lease) -> None:
        length = self.ttl * self.pick(0.02, 0.3, 0.9, 1.6)
        for _ in range(int(self.pick(1, 2, 3))):
            if lease.lost:
                return
            others = [hold for hold, other, _ in self.open.values() if other.name == lease.name]
            self.counts["together"] += len(others) > 1
            await process.sleep(length * self.chance())
            if self.chance() < 0.1:
                with self.refusals():
                    await lease.renew()
            self.check_end(process, lease)

    def judge(self, name: str, holds: list[Hold], exclusive: bool) -> list[Any]:
        return violations_of_shares(holds, kept=exclusive)


class CountsNobody(MemoryServer):
    """Whoever wants a part gets it, whatever is taken already."""

    def _grant_share(
        self, record: Record, who: Holder, token: str, share: Share, ttl: float, queue: bool
    ) -> int | Refusal:
        taken = {other: record.shares.pop(other) for other in list(record.shares) if other != token}
        answer = super()._grant_share(record, who, token, share, ttl, queue)
        record.shares |= taken
        return answer


class ForgetsTheOthers(MemoryServer):
    """Who gives a part back frees the whole name, as where the key of all is deleted."""

    def release(self, space: str, name: str, token: str) -> LossReason | None:
        record, answer = self._records.get((space, name)), super().release(space, name, token)
        if record is not None and answer is None and record.shares:
            record.token, record.shares = None, {}
        return answer


class EndsWithTheFirst(MemoryServer):
    """The name is free when the first of those who hold a part has ended, as where each sets the key's ttl."""

    def _end_if_over(self, record: Record, now: float) -> None:
        if any(share.expires_at <= now for share in record.shares.values()):
            record.token, record.free_since, record.shares = None, now, {}
        super()._end_if_over(record, now)


def play(seed: int, mix: Mix = EVERYTHING, parts: Parts = SOUND) -> Outcome:
    return PartsHistory(seed, mix, parts).run()
