"""A lock server inside this process: a table, a clock, a queue for each name. Every step is atomic.

It knows nothing of clients, runtimes or URLs. The simulation puts a bad network before it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from dibs.errors import LossReason, StoreUnavailable
from dibs.holder import Eviction, Holder, LockState
from dibs.holder import Record as Left
from dibs.runtime import lifetime
from dibs.share import Share, share_of, shown_share
from dibs.stores.memory.port import shares
from dibs.stores.memory.port.entry import NOTHING_COMES, RESERVED_FOR, TO_SEVERAL, Record, Ticket, Wake, lengthened
from dibs.stores.memory.port.records import Shelf

P = ParamSpec("P")
R = TypeVar("R")


def unix_us() -> int:
    """The wall clock in microseconds: what makes fences rise even over a lost memory."""
    return time.time_ns() // 1000


def step(method: Callable[Concatenate[MemoryServer, P], R]) -> Callable[Concatenate[MemoryServer, P], R]:
    """Do *method* alone: one step at a time, and none in the middle of another.

    A signal handler runs in the middle of what its thread does: to wait there would never end, and to go ahead could
    give one lock to two. (No context manager of ours: Ctrl-C at its end would leave it entered.)
    """

    @functools.wraps(method)
    def alone(self: MemoryServer, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._mutex:
            if self._working:
                raise StoreUnavailable("memory:", "a signal handler cannot use it while its thread does")
            try:
                self._working = True
                return method(self, *args, **kwargs)
            finally:
                self._working = False

    return alone


class MemoryServer:
    """What a store is on the other side of the wire."""

    def __init__(self, now: Callable[[], float], wall_us: Callable[[], int] = unix_us) -> None:
        self._now, self.wall_us = now, wall_us
        self._mutex, self._working = threading.RLock(), False
        lifetime.around_fork(self._before_fork, self._after_fork)
        lifetime.after_fork(self._forked)
        self._records: dict[tuple[str, str], Record] = {}
        self._shelf = Shelf(now, wall_us)

    def _grant(
        self, space: str, who: Holder, token: str, ttl: float, *, queue: bool
    ) -> int | tuple[Holder | None, float]:
        """Grant to *token* and return the fence, or return who has it and for how long at most."""
        now, record = self._now(), self._records.setdefault((space, who.name), Record())
        self._end_if_over(record, now)
        if record.refuses(token, now):
            return NOTHING_COMES
        if (share := share_of(token)) is not None:
            return self._grant_share(record, who, token, share, ttl, queue)
        if record.token == token:  # whoever asks counts the ttl from now, so must we: it may be long since granted
            record.expires_at = now + ttl
            return record.fence
        next_token = next(iter(record.line), token)
        reserved = RESERVED_FOR - (now - record.free_since)
        if record.token is None and (next_token == token or reserved <= 0):
            record.line.pop(next_token, None)  # the first in line: we, or one who let its time pass
            record.line.pop(token, None)
            return self._give(record, who, token, now + ttl)
        if queue and token not in record.line:
            record.line[token] = Ticket(self._waiter(who, token))
        if record.token is None:
            return record.line[next_token].who, reserved
        return self._shown(record, now), record.expires_at - now

    grant = step(_grant)

    @step
    def renew(self, space: str, name: str, token: str, fence: int, ttl: float, longest: float) -> LossReason | None:
        """Extend the grant of *token* with this *fence*, or say why it is over.

        It never gets shorter, unless its end is farther away than *longest*: then the clock was set back.
        """
        now, record = self._now(), self._records.get((space, name), Record())
        if share_of(token) is not None:
            return shares.renew(record, token, fence, now, ttl, longest)
        reason = self._why_not_held(record, token, now)
        if reason is None and record.fence != fence:  # an ask that came late was granted, after that grant ended
            reason = LossReason.TAKEN
        if reason is None:
            record.expires_at = lengthened(record.expires_at, now, ttl, longest)
        return reason

    def _release(self, space: str, name: str, token: str) -> LossReason | None:
        """Take away whatever *token* has, and hint the next in line if the lock is free."""
        now, record = self._now(), self._records.get((space, name), Record())
        if share_of(token) is not None:
            reason = shares.release(record, token, now)
        else:
            reason = self._why_not_held(record, token, now)
            if reason is None:
                record.token, record.free_since = None, now
        had_ticket = record.line.pop(token, None) is not None
        if reason is None or had_ticket:
            self._hint_next(record, now)
        return reason

    release = step(_release)

    @step
    def give_back(self, space: str, name: str, token: str, mark: float) -> LossReason | None:
        """Do what `release` does, and refuse for *mark* seconds what may still come of *token*."""
        record = self._records.setdefault((space, name), Record())
        record.marks[token] = self._now() + mark
        return self._release(space, name, token)

    @step
    def on_hint(self, space: str, name: str, token: str, wake: Wake | None) -> bool:
        """Do *wake* when *token* is hinted; tell whether it was hinted already, or has no ticket."""
        ticket = self._records.get((space, name), Record()).line.get(token)
        if ticket is None:
            return True
        ticket.wake, hinted, ticket.hinted = wake, ticket.hinted, False
        return hinted

    @step
    def adopt(self, space: str, who: Holder, token: str) -> None:
        """Show *who* as the holder from now on."""
        record = self._records.get((space, who.name), Record())
        if record.token == token and record.who is not None:
            record.who = who._replace(fence=record.fence, since=record.who.since)
        elif (share := record.shares.get(token)) is not None:
            share.who = who._replace(fence=share.fence, since=share.who.since, share=share.share.shown)

    @step
    def evict(self, space: str, name: str, fence: int, reason: str, by: str) -> bool:
        """Break the grant with *fence*, if it holds."""
        now, record = self._now(), self._records.get((space, name), Record())
        self._end_if_over(record, now)
        token = shares.of_fence(record, fence) if record.token == TO_SEVERAL else record.token
        if token is None or (record.token == token and record.fence != fence):
            return False
        record.evicted, record.evicted_token = Eviction(fence, reason, by, self.wall_us() / 1e6), token
        if record.token == token:
            record.token, record.free_since = None, now
        else:
            shares.release(record, token, now)
        self._hint_next(record, now)
        return True

    @step
    def show(self, space: str, name: str) -> LockState:
        """All that is known of *name*."""
        now, record = self._now(), self._records.get((space, name), Record())
        self._end_if_over(record, now)
        waiting = tuple(ticket.who for ticket in record.line.values())
        sharing = shares.shown(record, now)
        holder = sharing[0] if sharing else self._shown(record, now)
        return LockState(name, record.fence, holder, waiting, record.evicted, sharing=sharing)

    @step
    def names(self, space: str) -> list[str]:
        """All names that were ever locked in *space*."""
        return sorted(name for known, name in self._records if known == space)

    @step
    def grant_unless_recorded(
        self, space: str, who: Holder, token: str, ttl: float, after: int, *, queue: bool
    ) -> int | tuple[Holder | None, float] | Left:
        """Grant, or return the record if it is of a grant after the fence *after*."""
        left = self._shelf.find(space, who.name)
        if left is not None and left.fence > after:
            return left
        return self._grant(space, who, token, ttl, queue=queue)

    @step
    def remember(self, space: str, name: str, token: str, fence: int, data: bytes, keep: float) -> LossReason | None:
        """Write the record of *name* if *token* holds it with this *fence*."""
        return self._remember(space, name, token, fence, data, keep)

    @step
    def finish(self, space: str, name: str, token: str, fence: int, data: bytes, keep: float) -> LossReason | None:
        """Write it, and give the lock back."""
        reason = self._remember(space, name, token, fence, data, keep)
        if reason is None:
            self._release(space, name, token)
        return reason

    @step
    def record(self, space: str, name: str) -> Left | None:
        """The record of *name*."""
        return self._shelf.find(space, name)

    @step
    def records(self, space: str, prefix: str) -> list[Left]:
        """The records of names that begin with *prefix*."""
        return self._shelf.all(space, prefix)

    @step
    def forget(self, space: str, name: str, fence: int) -> bool:
        """Remove the record that was written under *fence*."""
        return self._shelf.remove(space, name, fence)

    def _remember(self, space: str, name: str, token: str, fence: int, data: bytes, keep: float) -> LossReason | None:
        now, record = self._now(), self._records.get((space, name), Record())
        reason = self._why_not_held(record, token, now)
        if reason is None and record.fence != fence:
            reason = LossReason.TAKEN
        if reason is None:
            for key in self._shelf.put(space, name, token, fence, data, keep):
                self._drop_idle(key)
        elif self._shelf.has(space, name, token, fence, data):  # its answer was lost, and it asks again
            reason = None
        return reason

    def _drop_idle(self, key: tuple[str, str]) -> None:
        """Forget a name whose record is over, or there would be one for each request ever made; time has passed its
        fence long since."""
        record = self._records.get(key)
        if record is not None and not record.line and not record.marks and record.fence < self.wall_us():
            self._end_if_over(record, self._now())
            if record.token is None:
                del self._records[key]

    def _before_fork(self) -> None:
        self._mutex.acquire()  # else a child could inherit half a step, and a lock that nobody there can open

    def _after_fork(self) -> None:
        self._mutex.release()

    def _forked(self) -> None:
        self._mutex, self._working = threading.RLock(), False

    def _grant_share(
        self, record: Record, who: Holder, token: str, share: Share, ttl: float, queue: bool
    ) -> int | tuple[Holder | None, float]:
        now = self._now()
        refused = shares.refusal(record, who.name, token, share, now)
        if refused is None:
            if token not in record.shares:
                record.fence = max(record.fence + 1, self.wall_us())
                who = who._replace(fence=record.fence, since=self.wall_us() / 1e6, share=share.shown)
            return shares.give(record, who, token, share, now, ttl)
        if queue and token not in record.line:
            record.line[token] = Ticket(self._waiter(who, token))
            shares.call_next(record, now)
        return refused

    def _waiter(self, who: Holder, token: str) -> Holder:
        return who._replace(since=self.wall_us() / 1e6, share=shown_share(token))

    def _give(self, record: Record, who: Holder, token: str, expires_at: float) -> int:
        record.fence = max(record.fence + 1, self.wall_us())
        record.token, record.expires_at = token, expires_at
        record.who = who._replace(fence=record.fence, since=self.wall_us() / 1e6)
        return record.fence

    def _end_if_over(self, record: Record, now: float) -> None:
        if record.token is not None and now >= record.expires_at:
            record.token, record.free_since = None, record.expires_at
            record.shares.clear()
        elif record.token == TO_SEVERAL and not record.shares:  # Ctrl-C came as the last of them was given back
            record.token, record.free_since = None, now

    def _why_not_held(self, record: Record, token: str, now: float) -> LossReason | None:
        if record.token == token:
            self._end_if_over(record, now)
            return None if record.token else LossReason.EXPIRED
        return LossReason.EVICTED if record.evicted_token == token else LossReason.TAKEN

    def _hint_next(self, record: Record, now: float) -> None:
        self._end_if_over(record, now)
        if record.token is None and record.line:
            next(iter(record.line.values())).hint()
        elif record.token == TO_SEVERAL:
            shares.call_next(record, now)

    def _shown(self, record: Record, now: float) -> Holder | None:
        if record.token is None or record.who is None:
            return None
        return record.who._replace(expires_in=record.expires_at - now)
