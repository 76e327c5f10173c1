"""Asks the nodes of a Redlock for a lock: as often as it takes to win, or to learn who has it, or why that is unknown.

One attempt is in `attempt`. Here is what surrounds it: meeting the nodes, the clock that fences are proposed
from, letting those vote again that have waited, and what is answered.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

from dibs.errors import OutcomeUnknown
from dibs.holder import here
from dibs.runtime import Runtime
from dibs.stores.redis import values
from dibs.stores.redis.keys import RedisNaming
from dibs.stores.redlock import scripts, view, vote
from dibs.stores.redlock.admission import Admission
from dibs.stores.redlock.attempt import AttemptCalls, RedlockAttempt
from dibs.stores.redlock.broadcast import Broadcast
from dibs.stores.redlock.clocks import Clocks
from dibs.stores.redlock.member_scripts import NODE
from dibs.stores.redlock.options import LONGEST_ATTEMPT, RedlockOptions
from dibs.stores.redlock.port.nodes import NodeCall
from dibs.stores.store import Ask, Busy, Grant

LATE = 0.05
"""Seconds by which a step may exceed its budget; an attempt that stood still for longer counts as not made."""


class Granting:
    """Asks for the locks of one namespace, on behalf of one client."""

    def __init__(
        self, broadcast: Broadcast, naming: RedisNaming, admission: Admission, runtime: Runtime, options: RedlockOptions
    ) -> None:
        self._broadcast, self._nodes, self._naming, self._admission = broadcast, broadcast.nodes, naming, admission
        self._runtime, self._options = runtime, options
        self._clocks = Clocks(broadcast.count, runtime.now)
        self._attempts = itertools.count(1)
        self.proposal = self._clocks.middle_us
        """The time, by the clocks of the nodes: then all healthy nodes answer with one and the same fence."""

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Ask all at once; a second round only where the nodes do not agree on the fence."""
        until = self._runtime.now() + min(within, LONGEST_ATTEMPT)
        patience = self._options.patience(ask.ttl)
        if not self._admission.set:
            self._clocks.saw(await self._admission.meet(min(0.4 * within, 1.0)))
        channel = b"-"
        if ask.queue:
            channel = await self._nodes.expect(ask.token, min(patience, self._left(until) / 2))
        attempt, fence = await self._attempt(ask, channel, patience, until)
        if (attempt.strangers or self._clocks.is_one_silent()) and self._left(until) > 0:
            seen = await self._admission.let_in(min(patience, self._left(until) / 2), at_once=not fence)
            self._clocks.saw(seen)
            if seen and not fence and attempt.strangers:
                attempt, fence = await self._attempt(ask, channel, patience, until)
        if not fence:
            return self._refusal(ask, attempt)
        if ask.queue:
            self._nodes.forget(ask.token)
        return Grant(fence, ask.ttl)

    async def _attempt(self, ask: Ask, channel: bytes, patience: float, until: float) -> tuple[RedlockAttempt, int]:
        """Ask once; the fence is 0 if it was not granted."""
        attempt = RedlockAttempt(
            self._broadcast.names, self._broadcast.quorum, self._calls(ask, channel), self._runtime.now
        )
        total = min(until, self._runtime.now() + max(ask.ttl / 3, 0.05))
        asking = self._nodes.round()
        fence = 0
        try:
            fence = await attempt.run(asking, patience, total)
            if fence and self._runtime.now() > until + LATE:  # it stood still: what it heard may be forgotten by now
                fence = 0
                attempt.give_back(asking)
                raise OutcomeUnknown(self._broadcast.shown, "this process stood still while it asked")
        finally:
            asking.end(keep=ask.token if fence else "")
        self._clocks.heard(attempt.clocks)
        return attempt, fence

    def _left(self, until: float) -> float:
        return max(0.0, until - self._runtime.now())

    def _calls(self, ask: Ask, channel: bytes) -> AttemptCalls:
        keys, token = self._naming.keys(ask.name), values.quoted(ask.token)
        ttl = math.ceil(self._options.kept_for(ask.ttl) * 1000)
        facts = facts_of(self._runtime.pid(), ask.name, ask.note)
        attempt = next(self._attempts)
        return AttemptCalls(
            NodeCall(
                scripts.GRANT,
                (keys.lock, keys.fence, keys.queue, keys.tickets, NODE),
                *(token, ttl, self.proposal(), channel, facts, self._admission.set, attempt),
            ),
            lambda fence: NodeCall(scripts.CONFIRM, (keys.lock, keys.fence, NODE), token, fence),
            NodeCall(scripts.WITHDRAW, (keys.lock,), token, attempt, whole=True),
        )

    def _refusal(self, ask: Ask, attempt: RedlockAttempt) -> Busy:
        """Busy, if it is; otherwise raise, and say what is wrong with the nodes."""
        yes = vote.votes(attempt.said)
        if not attempt.is_busy:
            causes = {self._broadcast.names[node]: cause for node, cause in attempt.causes.items()}
            raise self._broadcast.unavailable(self._why_not(attempt, yes), causes)
        votes = [view.Vote(value, left, int(now_us)) for _, left, now_us, value in attempt.refusals.values()]
        missing = self._broadcast.count - yes - len(votes)
        holder = view.holder_of(ask.name, self._naming.keys(ask.name).lock, votes, missing, self._broadcast.quorum)
        free = vote.free_after([each.left_ms / 1000 for each in votes], self._broadcast.quorum - yes)
        if holder is None:  # the votes are split between clients that ask at the same time
            free = min(free, self._options.retry_delay + self._options.jitter * self._runtime.random())
        return Busy(holder, free)

    def _why_not(self, attempt: RedlockAttempt, yes: int) -> str:
        """Why *yes* votes were not enough."""
        count, quorum = self._broadcast.count, self._broadcast.quorum
        if yes < quorum:
            said, forgot = f"{yes} of {count} nodes gave their vote, {quorum} are needed", len(attempt.forgetful)
            if forgot > count - quorum:
                said += f"; {forgot} have no memory, so nobody can say which may vote: see dibs reseed"
            return said
        what = "gave it" if attempt.said.count(vote.fence_of(attempt.said)) >= quorum else "confirmed one fence"
        return (
            f"{yes} of {count} nodes gave their vote, but fewer than {quorum} {what} in time, so all votes were given "
            "back; a longer node_timeout waits for slow nodes"
        )


@lru_cache(maxsize=4096)
def facts_of(pid: int, name: str, note: str) -> str:
    """This process as a holder, as text; the same for each ask, so it is kept."""
    return values.facts(here(pid, name, note))
