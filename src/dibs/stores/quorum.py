"""Grants from a majority of independent Redis servers (Redlock), with fences that a majority has confirmed.

A lock is held by whoever holds it on more than half of the nodes. All are asked at once, and the answer is there as
soon as a majority has given the same one. Who has won is decided in `quorum_vote`, which nodes vote in
`quorum_members`; what a node does is in `quorum_scripts`. See docs/stores/redlock.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dibs.errors import LossReason, Misuse, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState, here
from dibs.ports.redis_nodes import Call, Nodes
from dibs.runtime import Runtime
from dibs.stores import quorum_scripts as scripts
from dibs.stores import redis_values as values
from dibs.stores.guarantees import Ability, Effect, Guarantees, Promise
from dibs.stores.quorum_admission import Admission
from dibs.stores.quorum_everyone import Everyone
from dibs.stores.quorum_granting import Granting
from dibs.stores.quorum_looking import Looking
from dibs.stores.quorum_member_scripts import NODE
from dibs.stores.quorum_nodes import connected
from dibs.stores.quorum_options import Options, from_redlock_url, sources_of
from dibs.stores.quorum_renewal import Renewal, grouped, is_decided, settled
from dibs.stores.redis_keys import Naming
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

STAND_IN = 0.1
"""Seconds after which the second in line asks: the first may stand still."""


def open_url(url: str, namespace: str, runtime: Runtime) -> QuorumStore:
    """``redlock://[user:password@]h1,h2,h3[/db][?options]``; ``rediss+redlock://`` with TLS."""
    sources, options = from_redlock_url(url, blocking=runtime.blocking)
    return QuorumStore(connected(sources, runtime, options), namespace, runtime, options)


def open_nodes(nodes: Sequence[Any], namespace: str, runtime: Runtime) -> QuorumStore:
    """A list of URLs, or of clients of redis-py."""
    sources, options = sources_of(nodes, blocking=runtime.blocking), Options()
    return QuorumStore(connected(sources, runtime, options), namespace, runtime, options)


class QuorumStore(Store):
    """Grants from a majority of Redis servers; see docs/stores/redlock.md."""

    guarantees = Guarantees(
        name="redlock",
        good_for="locks that outlive the loss of a Redis server, where there are three or five that nobody replicates",
        fence="confirmed by a majority: unique and rising whatever clocks and messages do, while no majority forgets; "
        "proposed by time, so that it rises even then, unless clocks are wrong by more than the time between",
        wake="a message of any node to the first in line, then a random moment; and a poll",
        order="by chance; who came first is called first",
        freed="after the ttl",
        client_pause=Promise(Effect.FENCED, "The lease ends by the clocks of the nodes, and another gets it."),
        client_crash=Promise(Effect.FREED, "After the ttl."),
        server_restart=Promise(
            Effect.FREED,
            "A node that was restarted does not vote until every lease that counted on it is over, so nobody else gets "
            "the lock. It is kept if a majority is left that has it, else its holder is told by the deadline. If a "
            "majority forgets, the lock rests until somebody reseeds the nodes.",
        ),
        failover=Promise(
            Effect.FENCED,
            "Nodes are single servers. One that fails over behind its address forgets unnoticed if its replica has "
            "the mark but not the last writes: do not use such nodes.",
        ),
        partition=Promise(
            Effect.FREED, "Whoever reaches a majority keeps the lock; a holder that does not is told by its deadline."
        ),
        clock_jump=Promise(
            Effect.FENCED,
            "The vote of a node whose clock jumps ahead ends early: a lease that had a bare majority may be taken.",
        ),
        cannot={
            Ability.ORDER: "each node has a line of its own, and a majority is nobody's turn; see redis: or sqlite:",
            Ability.RECORDS: "nodes forget, and what a majority remembers is no record; take postgresql: or redis:",
            Ability.SHARED: "a node gives all of its vote to one; take redis:, postgresql:, etcd: or sqlite:",
            Ability.SEMAPHORE: "a node gives all of its vote to one; take redis:, postgresql:, etcd: or sqlite:",
        },
    )
    shortest_ttl = 0.1

    def __init__(self, nodes: Nodes, namespace: str, runtime: Runtime, options: Options) -> None:
        self._nodes, self._namespace, self._runtime, self._options = nodes, namespace, runtime, options
        self._everyone = Everyone(nodes, runtime)
        self._count, self._quorum = self._everyone.count, self._everyone.quorum
        self._naming = Naming(namespace, options.key)
        waits = options.lost_memory == "wait"
        self._admission = Admission(nodes, self._quorum, runtime, self._everyone.shown, wait=waits)
        self._looking = Looking(self._everyone, self._naming, self._admission, nodes_wait=waits)
        self._granting = Granting(self._everyone, self._naming, self._admission, runtime, options)

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
        return settled(self._everyone.shown, answers)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Give back on all nodes, also where no grant is known: an answer that is to come may say that there is one."""
        keys = self._naming.keys(name)
        call = Call(scripts.RELEASE, (keys.lock, keys.line, keys.tickets, keys.evicted), values.quoted(token))
        replies, causes = await self._everyone.ask(call, within, self._is_decided, token=token, behind=True)
        self._nodes.forget(token)
        said = list(replies.values())
        held = said.count(b"held")
        if held >= self._quorum:
            return None
        if len(said) < self._quorum:
            raise self._everyone.unavailable(f"{len(said)} of {self._count} nodes were told of the release", causes)
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
        """Break it on every node that has this grant."""
        keys = self._naming.keys(name)
        who = values.why(here(self._runtime.pid(), name, ""), reason)
        call = Call(scripts.EVICT, (keys.lock, keys.line, keys.tickets, keys.evicted), fence, who)
        replies, _ = await self._everyone.ask_each(call, within)
        broken = sum(reply == 1 for reply in replies.values())
        return bool(broken) and broken + self._count - len(replies) >= self._quorum

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Look through the keys of all nodes."""
        return await self._looking.holders(prefix, self._runtime.now() + within)

    async def show(self, name: str, within: float) -> LockState:
        """What the nodes agree on; and which of them do not vote."""
        return await self._looking.show(name, within)

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Write ourselves into the values."""
        key = self._naming.keys(claim.name).lock
        facts = values.facts(here(self._runtime.pid(), claim.name, note))
        call = Call(scripts.ATTACH, (key,), values.quoted(claim.token), facts)
        await self._everyone.ask_each(call, within)

    async def reseed(self, floor: int, within: float) -> None:
        """For the day on which a majority of nodes lost its memory."""
        if floor >= scripts.HIGHEST_FENCE:
            raise Misuse(f"floor={floor}: no fence is above it; the highest one is {scripts.HIGHEST_FENCE}")
        await self._admission.reseed(floor, within)

    async def close(self) -> None:
        """Close the connections."""
        await self._nodes.close()

    def forked(self) -> None:
        """Forget the parent's connections."""
        self._nodes.forked()

    def __repr__(self) -> str:
        return f"{self._everyone.shown}, namespace {self._namespace!r}"

    # -------------------------------------------------------------------------------------------------------

    def _renewal(self, claims: Sequence[Claim]) -> Call:
        keys, arguments = [NODE], list[str | int]()
        for claim in claims:
            own = self._naming.keys(claim.name)
            keys += [own.lock, own.fence, own.evicted]
            arguments += [math.ceil(self._options.kept_for(claim.ttl) * 1000), values.quoted(claim.token), claim.fence]
        return Call(scripts.RENEW, tuple(keys), *arguments)

    def _is_decided(self, replies: Mapping[int, Any]) -> bool:
        return is_decided(replies.values(), self._count, self._quorum)

    def _unsure(self, replies: Mapping[int, Any]) -> StoreUnavailable:
        """The error for a claim that neither a majority has renewed nor a majority can be said to have refused."""
        causes: dict[str, BaseException] = {}
        for node, name in enumerate(self._everyone.names):
            reply = replies.get(node, OutcomeUnknown(name, "no answer in time"))
            if isinstance(reply, StoreUnavailable):
                causes[name] = reply
        return self._everyone.unavailable("no majority of its nodes answered the renewal", causes)
