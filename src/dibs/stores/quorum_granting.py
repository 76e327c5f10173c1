"""Asks the nodes of a Redlock for a lock: as often as it takes to win, or to know who has it or why nobody can say.

One attempt is in `quorum_attempt`. Here is what surrounds it: meeting the nodes, the clock that fences are proposed
from, letting those vote again that have waited, and what is answered.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

from dibs.errors import Misuse, OutcomeUnknown
from dibs.holder import here
from dibs.ports.redis_nodes import Call
from dibs.runtime import Runtime
from dibs.stores import quorum_scripts as scripts
from dibs.stores import quorum_view as view
from dibs.stores import quorum_vote as vote
from dibs.stores import redis_values as values
from dibs.stores.quorum_admission import Admission
from dibs.stores.quorum_attempt import Attempt, Calls
from dibs.stores.quorum_clocks import Clocks
from dibs.stores.quorum_everyone import Everyone
from dibs.stores.quorum_member_scripts import NODE
from dibs.stores.quorum_options import LONGEST_ATTEMPT, LONGEST_TTL, Options
from dibs.stores.redis_keys import Naming
from dibs.stores.store import Ask, Busy, Grant

LATE = 0.05
"""Seconds by which a step may exceed its budget; an attempt that stood still for longer counts as not made."""


class Granting:
    """The locks of one namespace, as one client asks for them."""

    def __init__(
        self, everyone: Everyone, naming: Naming, admission: Admission, runtime: Runtime, options: Options
    ) -> None:
        self._everyone, self._nodes, self._naming, self._admission = everyone, everyone.nodes, naming, admission
        self._runtime, self._options = runtime, options
        self._clocks = Clocks(everyone.count, runtime.now)
        self._attempts = itertools.count(1)
        self.proposal = self._clocks.middle_us
        """The time, by the clocks of the nodes: then all healthy nodes answer with one and the same fence."""

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Ask all at once; a second round only where the nodes do not agree on the fence."""
        if ask.ttl > LONGEST_TTL:
            raise Misuse(
                f"ttl={ask.ttl:g}: a Redlock takes at most a day, for a node that forgot stays out for so long"
            )
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

    async def _attempt(self, ask: Ask, channel: bytes, patience: float, until: float) -> tuple[Attempt, int]:
        """Ask once; the fence is 0 if it was not granted."""
        attempt = Attempt(self._everyone.names, self._everyone.quorum, self._calls(ask, channel), self._runtime.now)
        total = min(until, self._runtime.now() + max(ask.ttl / 3, 0.05))
        asking = self._nodes.round()
        fence = 0
        try:
            fence = await attempt.run(asking, patience, total)
            if fence and self._runtime.now() > until + LATE:  # it stood still: what it heard may be forgotten by now
                fence = 0
                attempt.give_back(asking)
                raise OutcomeUnknown(self._everyone.shown, "this process stood still while it asked")
        finally:
            asking.end(keep=ask.token if fence else "")
        self._clocks.heard(attempt.clocks)
        return attempt, fence

    def _left(self, until: float) -> float:
        return max(0.0, until - self._runtime.now())

    def _calls(self, ask: Ask, channel: bytes) -> Calls:
        keys, token = self._naming.keys(ask.name), values.quoted(ask.token)
        ttl = math.ceil(self._options.kept_for(ask.ttl) * 1000)
        facts = facts_of(self._runtime.pid(), ask.name, ask.note)
        attempt = next(self._attempts)
        return Calls(
            Call(
                scripts.GRANT,
                (keys.lock, keys.fence, keys.line, keys.tickets, NODE),
                *(token, ttl, self.proposal(), channel, facts, self._admission.set, attempt),
            ),
            lambda fence: Call(scripts.CONFIRM, (keys.lock, keys.fence, NODE), token, fence),
            Call(scripts.WITHDRAW, (keys.lock,), token, attempt, whole=True),
        )

    def _refusal(self, ask: Ask, attempt: Attempt) -> Busy:
        """Busy, if it is; else the nodes are to blame."""
        yes = vote.votes(attempt.said)
        if not attempt.is_busy:
            causes = {self._everyone.names[node]: cause for node, cause in attempt.causes.items()}
            raise self._everyone.unavailable(
                f"{yes} of {self._everyone.count} nodes gave their vote, {self._everyone.quorum} are needed", causes
            )
        votes = [view.Vote(value, left, int(now_us)) for _, left, now_us, value in attempt.refusals.values()]
        missing = self._everyone.count - yes - len(votes)
        holder = view.holder_of(ask.name, votes, missing, self._everyone.quorum)
        free = vote.free_after([each.left_ms / 1000 for each in votes], self._everyone.quorum - yes)
        if holder is None:  # the votes are split between some who ask at the same time
            free = min(free, self._options.retry_delay + self._options.jitter * self._runtime.random())
        return Busy(holder, free)


@lru_cache(maxsize=4096)
def facts_of(pid: int, name: str, note: str) -> str:
    """Who asks, as text."""
    return values.facts(here(pid, name, note))
