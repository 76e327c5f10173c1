"""Grants from a majority of independent Redis servers (Redlock), with fences that a majority has confirmed.

A lock is held by whoever holds it on more than half of the nodes. All are asked at once, and the answer is there as
soon as a majority has given the same one. Who has won is decided in `quorum_vote`, which nodes vote in
`quorum_members`; what a node does is in `quorum_scripts`. See docs/stores/redlock.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import hiredis

from dibs.errors import LossReason, Misuse, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState, here
from dibs.ports.redis_command import command
from dibs.ports.redis_errors import refused
from dibs.ports.redis_nodes import Call, Nodes
from dibs.runtime import Runtime
from dibs.stores import quorum_members as members
from dibs.stores import quorum_scripts as scripts
from dibs.stores import quorum_view as view
from dibs.stores import quorum_vote as vote
from dibs.stores import redis_values as values
from dibs.stores.guarantees import Ability, Effect, Guarantees, Promise
from dibs.stores.quorum_admission import NODE, Admission
from dibs.stores.quorum_attempt import Attempt, Calls
from dibs.stores.quorum_clocks import Clocks
from dibs.stores.quorum_options import (
    LONGEST_ATTEMPT,
    LONGEST_TTL,
    Options,
    from_redlock_url,
    sources_of,
)
from dibs.stores.quorum_renewal import Renewal, grouped, is_decided, settled
from dibs.stores.redis_keys import Naming
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

STAND_IN = 0.1
"""Seconds after which the second in line asks: the first may stand still."""

LATE = 0.05
"""Seconds by which a step may exceed its budget; an attempt that stood still for longer counts as not made."""

Enough = Callable[[Collection[Any]], bool]


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
        },
    )
    shortest_ttl = 0.1

    def __init__(self, nodes: Nodes, namespace: str, runtime: Runtime, options: Options) -> None:
        self._nodes, self._namespace, self._runtime, self._options = nodes, namespace, runtime, options
        self._names = list(nodes.names)
        self._count, self._quorum = len(self._names), vote.quorum_of(len(self._names))
        self._shown = f"redlock {', '.join(self._names)}"
        self._naming = Naming(namespace, options.key)
        self._admission = Admission(nodes, self._quorum, runtime, self._shown, wait=options.lost_memory == "wait")
        self._clocks = Clocks(self._count, runtime.now)
        self._attempts = itertools.count(1)

    # --- the steps -----------------------------------------------------------------------------------------

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Ask all at once; a second round only where the nodes do not agree on the fence."""
        if ask.ttl > LONGEST_TTL:
            raise Misuse(
                f"ttl={ask.ttl:g}: a Redlock takes at most a day, for a node that forgot stays out for so long"
            )
        until = self._runtime.now() + min(within, LONGEST_ATTEMPT)
        patience = self._options.patience(ask.ttl)
        if not self._admission.set:
            await self._meet(min(0.4 * within, 1.0))
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
        attempt = Attempt(self._names, self._quorum, self._calls(ask, channel), self._runtime.now)
        total = min(until, self._runtime.now() + max(ask.ttl / 3, 0.05))
        asking = self._nodes.round()
        fence = 0
        try:
            fence = await attempt.run(asking, patience, total)
            if fence and self._runtime.now() > until + LATE:  # it stood still: what it heard may be forgotten by now
                fence = 0
                attempt.give_back(asking)
                raise OutcomeUnknown(self._shown, "this process stood still while it asked")
        finally:
            asking.end(keep=ask.token if fence else "")
        self._clocks.heard(attempt.clocks)
        return attempt, fence

    def _left(self, until: float) -> float:
        return max(0.0, until - self._runtime.now())

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
            while not renewal.is_decided and (answer := await asking.next(until)) is not None:
                renewal.hear(answer._replace(reply=self._good(answer.node, answer.reply)))
        finally:
            asking.end()
        answers = [
            self._unsure(renewal.replies[place]) if (said := renewal.answer(place, index)) is False else said
            for place, group in enumerate(groups)
            for index in range(len(group))
        ]
        return settled(self._shown, answers)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Give back on all nodes, also where no grant is known: an answer that is to come may say that there is one."""
        keys = self._naming.keys(name)
        call = Call(scripts.RELEASE, (keys.lock, keys.line, keys.tickets, keys.evicted), values.quoted(token))
        replies, causes = await self._ask_all(call, within, self._is_decided, token=token, behind=True)
        self._nodes.forget(token)
        said = list(replies.values())
        held = said.count(b"held")
        if held < self._quorum and len(said) < self._quorum:
            raise self._unavailable(f"{len(said)} of {self._count} nodes were told of the release", causes)
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
        replies, causes = await self._ask_all(call, within, lambda said: len(said) == self._count)
        if len(replies) < self._quorum:
            raise self._unavailable(f"{len(replies)} of {self._count} nodes answered", causes)
        broken = sum(reply == 1 for reply in replies.values())
        return bool(broken) and broken + self._count - len(replies) >= self._quorum

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Look through the keys of all nodes."""
        pattern, until = self._naming.pattern(prefix), self._runtime.now() + within
        found: dict[str, dict[int, view.Vote]] = {}
        cursors, done, causes = dict.fromkeys(range(self._count), b"0"), set[int](), dict[str, BaseException]()
        asking = self._nodes.round()
        try:
            for node, cursor in cursors.items():
                asking.send(node, Call(scripts.LIST, (), cursor, pattern))
            while len(done) + len(causes) < self._count and (answer := await asking.next(until)) is not None:
                reply = self._good(answer.node, answer.reply)
                if isinstance(reply, StoreUnavailable):
                    causes[self._names[answer.node]] = reply
                    continue
                cursor, now_us, keys = reply
                self._collect(found, answer.node, int(now_us), keys)
                if cursor == b"0":
                    done.add(answer.node)
                else:
                    asking.send(answer.node, Call(scripts.LIST, (), cursor, pattern))
        finally:
            asking.end()
        if len(done) < self._quorum:
            raise self._unavailable(f"{len(done)} of {self._count} nodes answered", causes)
        missing = self._count - len(done)
        all_of = [view.holder_of(name, list(votes.values()), missing, self._quorum) for name, votes in found.items()]
        return sorted(holder for holder in all_of if holder is not None)

    async def show(self, name: str, within: float) -> LockState:
        """Ask all, and tell what they agree on; and which of them do not vote."""
        keys = self._naming.keys(name)
        call = Call(scripts.SHOW, (*keys, NODE))
        patience = min(within, 1.0)
        replies, causes = await self._ask_all(call, patience, lambda said: len(said) == self._count)
        if len(replies) < self._quorum:
            raise self._unavailable(f"{len(replies)} of {self._count} nodes answered", causes)
        missing, remarks = self._count - len(replies), await self._remarks(replies, causes, patience)
        return view.state_of(name, list(replies.values()), missing, self._quorum, remarks)

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Write ourselves into the values."""
        key = self._naming.keys(claim.name).lock
        facts = values.facts(here(self._runtime.pid(), claim.name, note))
        call = Call(scripts.ATTACH, (key,), values.quoted(claim.token), facts)
        replies, causes = await self._ask_all(call, within, lambda said: len(said) == self._count)
        if len(replies) < self._quorum:
            raise self._unavailable(f"{len(replies)} of {self._count} nodes answered", causes)

    async def reseed(self, floor: int, within: float = 5.0) -> None:
        """Let every node vote from now on, and give out no fence that is not above *floor*.

        For the day on which a majority of nodes lost its memory: *floor* is the highest fence that any guard has seen.
        """
        await self._admission.reseed(floor, within)

    async def close(self) -> None:
        """Close the connections."""
        await self._nodes.close()

    def forked(self) -> None:
        """Forget the parent's connections."""
        self._nodes.forked()

    def __repr__(self) -> str:
        return f"{self._shown}, namespace {self._namespace!r}"

    # --- what is said --------------------------------------------------------------------------------------

    def _calls(self, ask: Ask, channel: bytes) -> Calls:
        keys, token = self._naming.keys(ask.name), values.quoted(ask.token)
        ttl = math.ceil(self._options.kept_for(ask.ttl) * 1000)
        facts = facts_of(self._runtime.pid(), ask.name, ask.note)
        attempt = next(self._attempts)
        return Calls(
            Call(
                scripts.GRANT,
                (keys.lock, keys.fence, keys.line, keys.tickets, NODE),
                *(token, ttl, self._proposal(), channel, facts, self._admission.set, attempt),
            ),
            lambda fence: Call(scripts.CONFIRM, (keys.lock, keys.fence, NODE), token, fence),
            Call(scripts.WITHDRAW, (keys.lock,), token, attempt, whole=True),
        )

    def _renewal(self, claims: Sequence[Claim]) -> Call:
        keys, arguments = [NODE], list[str | int]()
        for claim in claims:
            own = self._naming.keys(claim.name)
            keys += [own.lock, own.fence, own.evicted]
            arguments += [math.ceil(self._options.kept_for(claim.ttl) * 1000), values.quoted(claim.token), claim.fence]
        return Call(scripts.RENEW, tuple(keys), *arguments)

    def _proposal(self) -> int:
        """The time, by the clocks of the nodes: then all healthy nodes answer with one and the same fence."""
        return self._clocks.middle_us()

    # --- what is answered ----------------------------------------------------------------------------------

    async def _meet(self, patience: float) -> None:
        self._clocks.saw(await self._admission.meet(patience))

    async def _ask_all(
        self, call: Call, within: float, enough: Enough, *, token: str = "", behind: bool = False
    ) -> tuple[dict[int, Any], dict[str, BaseException]]:
        """Say the same to all; the answers until there are enough, and why others have none."""
        until = self._runtime.now() + within
        replies: dict[int, Any] = {}
        causes: dict[str, BaseException] = {}
        asking = self._nodes.round(token)
        try:
            asking.send_all(call, behind=behind)
            while len(replies) + len(causes) < self._count and not enough(replies.values()):
                answer = await asking.next(until)
                if answer is None:
                    break
                reply = self._good(answer.node, answer.reply)
                if isinstance(reply, StoreUnavailable):
                    causes[self._names[answer.node]] = reply
                else:
                    replies[answer.node] = reply
        finally:
            asking.end()
        for node, name in enumerate(self._names) if not enough(replies.values()) else ():
            if node not in replies and name not in causes:
                causes[name] = OutcomeUnknown(name, f"no answer within {within:.3g} s")
        return replies, causes

    def _refusal(self, ask: Ask, attempt: Attempt) -> Busy:
        """Busy, if it is; else the nodes are to blame."""
        yes = vote.votes(attempt.said)
        if not attempt.is_busy:
            causes = {self._names[node]: cause for node, cause in attempt.causes.items()}
            raise self._unavailable(f"{yes} of {self._count} nodes gave their vote, {self._quorum} are needed", causes)
        votes = [view.Vote(value, left, int(now_us)) for _, left, now_us, value in attempt.refusals.values()]
        missing = self._count - yes - len(votes)
        holder = view.holder_of(ask.name, votes, missing, self._quorum)
        free = vote.free_after([each.left_ms / 1000 for each in votes], self._quorum - yes)
        if holder is None:  # the votes are split between some who ask at the same time
            free = min(free, self._options.retry_delay + self._options.jitter * self._runtime.random())
        return Busy(holder, free)

    def _is_decided(self, said: Collection[object]) -> bool:
        return is_decided(said, self._count, self._quorum)

    def _unsure(self, replies: dict[int, Any]) -> StoreUnavailable:
        """The error for a claim that neither a majority has renewed nor a majority can be said to have refused."""
        causes = {self._names[n]: r for n, r in replies.items() if isinstance(r, StoreUnavailable)}
        silent = [name for n, name in enumerate(self._names) if n not in replies]
        causes |= {name: OutcomeUnknown(name, "no answer in time") for name in silent}
        return self._unavailable("no majority of its nodes answered the renewal", causes)

    def _unavailable(self, problem: str, causes: dict[str, Any]) -> StoreUnavailable:
        """Unknown, if nodes that may have done it could make up what is missing; else it certainly did not happen."""
        unknown = sum(isinstance(cause, OutcomeUnknown) for cause in causes.values())
        kind = OutcomeUnknown if unknown > self._count - self._quorum else StoreUnavailable
        return kind(self._shown, problem, causes)

    def _good(self, node: int, reply: Any) -> Any:
        return refused(self._names[node], reply) if isinstance(reply, hiredis.ReplyError) else reply

    def _collect(self, found: dict[str, dict[int, view.Vote]], node: int, now_us: int, keys: Sequence[Any]) -> None:
        for key, value, left in keys:
            name = self._naming.name(key)
            if name is None or left < 0 or (self._naming.raw and values.read_value(value) is None):
                continue  # not ours; gone or without an end; other data, where we share the keys of a program
            found.setdefault(name, {})[node] = view.Vote(value, left, now_us)

    async def _remarks(
        self, replies: dict[int, Any], causes: dict[str, BaseException], patience: float
    ) -> tuple[str, ...]:
        remarks = [] if self._options.lost_memory == "wait" else ["a node that lost its memory votes at once"]
        remarks += [f"{name}: {getattr(cause, 'problem', cause)}" for name, cause in causes.items()]
        if not all(reply[-1] for reply in replies.values()):
            seen, _ = await self._admission.look("look", patience)
            voting = [member for member in seen if member is not None and member.votes]
            if not voting and all(member is None or member.is_new for member in seen):
                return tuple(remarks)  # nothing was ever asked of them
            remarks += [
                f"{name}: {members.standing(member, voting, self._quorum)}"
                for name, member in zip(self._names, seen, strict=True)
                if member is not None and not member.votes
            ]
        return tuple(remarks)


@lru_cache(maxsize=4096)
def facts_of(pid: int, name: str, note: str) -> str:
    """Who asks, as text."""
    return values.facts(here(pid, name, note))


def greeting(runtime: Runtime, options: Options) -> list[bytes]:
    """What every connection begins with: the scripts, and finding out whether the server was away."""
    loads = [command("SCRIPT", "LOAD", script.text) for script in (scripts.GRANT, scripts.RELEASE, scripts.CONFIRM)]
    hello = Call(scripts.HELLO, (NODE,), runtime.token(), "durable" if options.durable else "")
    return [*loads, hello.in_full()]


def open_url(url: str, namespace: str, runtime: Runtime) -> QuorumStore:
    """``redlock://[user:password@]h1,h2,h3[/db][?options]``; ``rediss+redlock://`` with TLS."""
    sources, options = from_redlock_url(url, blocking=runtime.blocking)
    return _open(sources, namespace, runtime, options)


def open_nodes(nodes: Sequence[Any], namespace: str, runtime: Runtime) -> QuorumStore:
    """A list of URLs, or of clients of redis-py."""
    return _open(sources_of(nodes, blocking=runtime.blocking), namespace, runtime, Options())


def _open(sources: Sequence[Any], namespace: str, runtime: Runtime, options: Options) -> QuorumStore:
    if len(sources) % 2 == 0:
        import logging  # noqa: PLC0415 - costs 4 ms at start, and is needed only here

        logging.getLogger("dibs").warning(
            "a Redlock of %d nodes survives no more losses than one of %d, and each lock needs one vote more",
            len(sources),
            len(sources) - 1,
        )
    patience = options.node_timeout or 0.1

    def words() -> list[bytes]:
        return greeting(runtime, options)

    if runtime.blocking:
        from dibs.ports.redis_nodes_blocking import BlockingNodes  # noqa: PLC0415 - the one that is needed

        blocking = BlockingNodes(sources, words, runtime.now, runtime.token, patience, options.node_timeout or 0.5)
        return QuorumStore(blocking, namespace, runtime, options)
    from dibs.ports.redis_nodes_async import AsyncNodes  # noqa: PLC0415 - the one that is needed

    return QuorumStore(AsyncNodes(sources, words, runtime, patience), namespace, runtime, options)
