"""Grants from a majority of independent Redis servers (Redlock), with fences that a majority has confirmed.

A lock is held by the client that holds it on more than half of the nodes. All are asked at once, and the answer is
there as soon as a majority has given the same one. `vote` decides who has won, which nodes vote in `members`; what a
node does is in `scripts`. See docs/stores/redlock.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dibs.errors import LossReason, Misuse, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState, here
from dibs.runtime import Driver, Runtime
from dibs.stores.guarantees import Ability, Bound, Effect, Guarantees, Promise
from dibs.stores.redis import values
from dibs.stores.redis.keys import RedisNaming
from dibs.stores.redis.scripts import HIGHEST_FENCE
from dibs.stores.redlock import scripts
from dibs.stores.redlock.admission import Admission
from dibs.stores.redlock.broadcast import Broadcast
from dibs.stores.redlock.connect import connected
from dibs.stores.redlock.grant import Granting
from dibs.stores.redlock.member_scripts import NODE
from dibs.stores.redlock.options import LONGEST_TTL, RedlockOptions, from_redlock_url, sources_of
from dibs.stores.redlock.port.nodes import NodeCall, Nodes
from dibs.stores.redlock.renewal import Renewal, grouped, is_decided, settled
from dibs.stores.redlock.view import RedlockView
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

STAND_IN = 0.1
"""Seconds after which the second waiter asks: the first may stand still."""


def open_url(url: str, namespace: str, runtime: Runtime) -> RedlockStore:
    """``redlock://[user:password@]h1,h2,h3[/db][?options]``; ``rediss+redlock://`` with TLS."""
    sources, options = from_redlock_url(url, blocking=runtime.driver is Driver.BLOCKING)
    return RedlockStore(connected(sources, runtime, options), namespace, runtime, options)


def open_nodes(nodes: Sequence[Any], namespace: str, runtime: Runtime) -> RedlockStore:
    """A list of URLs, or of clients of redis-py."""
    sources, options = sources_of(nodes, blocking=runtime.driver is Driver.BLOCKING), RedlockOptions()
    return RedlockStore(connected(sources, runtime, options), namespace, runtime, options)


class RedlockStore(Store):
    """Grants from a majority of Redis servers; see docs/stores/redlock.md."""

    guarantees = Guarantees(
        name="redlock",
        good_for="locks that outlive the loss of a Redis server, where there are three or five without replication",
        fence="confirmed by a majority: unique and rising whatever clocks and messages do, while no majority forgets; "
        "proposed by time, so that it rises even then, unless clocks are wrong by more than the time between",
        wake="a message of any node to the first waiter, then a random moment; and a poll",
        order="by chance; the first waiter is called first",
        freed="after the ttl",
        waiter_crash=Bound(1.0, "There is no queue: each waiter asks for itself."),
        client_pause=Promise(Effect.FENCED, "The lease ends by the clocks of the nodes, and another gets it."),
        client_crash=Promise(Effect.FREED, "After the ttl."),
        server_restart=Promise(
            Effect.FREED,
            "A node that was restarted does not vote until every lease that counted on it is over, so nobody else gets "
            "the lock. It is kept if a majority is left that has it; if not, its holder is told by the deadline. If a "
            "majority forgets, the lock rests until somebody reseeds the nodes.",
        ),
        failover=Promise(
            Effect.FENCED,
            "Nodes are single servers. One that fails over behind its address forgets unnoticed if its replica has "
            "the mark but not the last writes: do not use such nodes.",
        ),
        partition=Promise(
            Effect.FREED, "A holder that reaches a majority keeps the lock; one that does not is told by its deadline."
        ),
        clock_jump=Promise(
            Effect.FENCED,
            "If a node's clock is set forward, its vote ends early: a lease with a bare majority may then be taken. If "
            "it is set back, its votes last longer by as much, or until their holder renews.",
        ),
        cannot={
            Ability.ORDER: "each node has a queue of its own, and a majority is nobody's turn; see redis: or sqlite:",
            Ability.RECORDS: "nodes forget, and what a majority remembers is no record; take postgresql: or redis:",
            Ability.SHARED: "a node gives all of its vote to one; take redis:, postgresql:, etcd: or sqlite:",
            Ability.SEMAPHORE: "a node gives all of its vote to one; take redis:, postgresql:, etcd: or sqlite:",
        },
    )
    shortest_ttl = 0.1
    longest_ttl = LONGEST_TTL

    def __init__(self, nodes: Nodes, namespace: str, runtime: Runtime, options: RedlockOptions) -> None:
        self._nodes, self._namespace, self._runtime, self._options = nodes, namespace, runtime, options
        self._broadcast = Broadcast(nodes, runtime)
        self._count, self._quorum = self._broadcast.count, self._broadcast.quorum
        self._naming = RedisNaming(namespace, options.key)
        waits = options.lost_memory == "wait"
        self._admission = Admission(nodes, self._quorum, runtime, self._broadcast.shown, wait=waits)
        self._view = RedlockView(self._broadcast, self._naming, self._admission, nodes_wait=waits)
        self._granting = Granting(self._broadcast, self._naming, self._admission, runtime, options)

    # --- the steps -----------------------------------------------------------------------------------------

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Ask all at once; a second round only where the nodes do not agree on the fence."""
        return await self._granting.grant(ask, within)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One script for a hundred locks on each node; each claim needs a majority of its own."""
        if not claims:
            return []
        groups = grouped(claims)
        calls = [self._renewal(group) for group in groups]
        renewal = Renewal(calls, self._count, self._quorum)
        until = self._runtime.now() + min(within, self._options.patience(min(claim.ttl for claim in claims)) * 2)
        asking = self._nodes.round()
        try:
            for call in calls:
                asking.send_all(call)
            while True:  # its condition is not here because of tests/test_loops.py
                if renewal.is_decided or (answer := await asking.next(until)) is None:
                    break
                renewal.hear(answer)
        finally:
            asking.end()
        answers = [
            self._unsure(renewal.replies[place]) if (said := renewal.answer(place, index)) is False else said
            for place, group in enumerate(groups)
            for index in range(len(group))
        ]
        return settled(self._broadcast.shown, answers)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Give back on all nodes, also where no grant is known: an answer that is to come may say that there is one."""
        keys = self._naming.keys(name)
        call = NodeCall(scripts.RELEASE, (keys.lock, keys.queue, keys.tickets, keys.evicted), values.quoted(token))
        replies, causes = await self._broadcast.ask(call, within, self._is_decided, token=token, behind=True)
        self._nodes.forget(token)
        said = list(replies.values())
        held = said.count(b"held")
        if held >= self._quorum:
            return None
        if len(said) < self._quorum:
            raise self._broadcast.unavailable(f"{len(said)} of {self._count} nodes were told of the release", causes)
        if held and held + self._count - len(said) >= self._quorum:
            return None
        return LossReason.EVICTED if b"evicted" in said else LossReason.TAKEN

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Wait to be called by any node, and then for a random moment: the others may be called too."""
        until = self._runtime.now() + within
        word = await self._nodes.wait(ask.token, within)
        if word:
            chance = self._runtime.random()
            pause = self._options.retry_delay * chance if word == "now" else STAND_IN + self._options.jitter * chance
            await self._runtime.sleep(max(0.0, min(pause, until - self._runtime.now())))

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """End the grant of *fence* on every node that has it; tell whether it was a majority's."""
        keys = self._naming.keys(name)
        who = values.why(here(self._runtime.pid(), name, ""), reason)
        call = NodeCall(scripts.EVICT, (keys.lock, keys.queue, keys.tickets, keys.evicted), fence, who)
        replies, _ = await self._broadcast.ask_each(call, within)
        evicted = sum(reply == 1 for reply in replies.values())
        return bool(evicted) and evicted + self._count - len(replies) >= self._quorum

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Look through the keys of all nodes."""
        return await self._view.holders(prefix, self._runtime.now() + within)

    async def show(self, name: str, within: float) -> LockState:
        """The state that the nodes agree on, and which of them do not vote."""
        return await self._view.show(name, within)

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Write this process and *note* into the values, as the holder."""
        key = self._naming.keys(claim.name).lock
        facts = values.facts(here(self._runtime.pid(), claim.name, note))
        call = NodeCall(scripts.ATTACH, (key,), values.quoted(claim.token), facts)
        await self._broadcast.ask_each(call, within)

    async def reseed(self, floor: int, within: float) -> None:
        """Let all nodes vote again after a majority lost its memory, with fences above *floor*."""
        if floor >= HIGHEST_FENCE:
            raise Misuse(f"floor={floor}: no fence is above it; the highest one is {HIGHEST_FENCE}")
        await self._admission.reseed(floor, within)

    async def close(self) -> None:
        """Close the connections."""
        await self._nodes.close()

    def forked(self) -> None:
        """Forget the parent's connections."""
        self._nodes.forked()

    def __repr__(self) -> str:
        return f"{self._broadcast.shown}, namespace {self._namespace!r}"

    # -------------------------------------------------------------------------------------------------------

    def _renewal(self, claims: Sequence[Claim]) -> NodeCall:
        keys, arguments = [NODE], list[str | int]()
        for claim in claims:
            own = self._naming.keys(claim.name)
            keys += [own.lock, own.fence, own.evicted]
            lasts = (self._options.kept_for(min(ttl, LONGEST_TTL)) for ttl in (claim.ttl, claim.longest))
            arguments += [*(math.ceil(seconds * 1000) for seconds in lasts), values.quoted(claim.token), claim.fence]
        return NodeCall(scripts.RENEW, tuple(keys), *arguments)

    def _is_decided(self, replies: Mapping[int, Any]) -> bool:
        return is_decided(replies.values(), self._count, self._quorum)

    def _unsure(self, replies: Mapping[int, Any]) -> StoreUnavailable:
        """The error for a claim that neither a majority has renewed nor a majority can be said to have refused."""
        causes: dict[str, BaseException] = {}
        for node, name in enumerate(self._broadcast.names):
            reply = replies.get(node, OutcomeUnknown(name, "no answer in time"))
            if isinstance(reply, StoreUnavailable):
                causes[name] = reply
        return self._broadcast.unavailable("no majority of its nodes answered the renewal", causes)
