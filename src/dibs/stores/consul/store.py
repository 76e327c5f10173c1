"""Grants leases from Consul: a key that is locked for a session, and one transaction for each step.

How a lock is taken is in `grant`, how it is kept in `renewal` and `lease`, the sessions that it belongs to are in
`sessions`, and its keys in `keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import ClassVar

from dibs.errors import LossReason, Misuse
from dibs.holder import Holder, LockState, here, signature
from dibs.ports.http.source import HttpSource, from_url
from dibs.runtime import Runtime
from dibs.runtime.clock import wall_clock
from dibs.stores.consul.grant import ConsulGrants
from dibs.stores.consul.holdings import ConsulHolding, ConsulHoldings
from dibs.stores.consul.keys import ConsulNaming
from dibs.stores.consul.lease import ConsulLeases
from dibs.stores.consul.options import LONGEST_TTL, NAMES, ConsulOptions, options_from, token_from
from dibs.stores.consul.port.agent import Agent, ConsulRefusal
from dibs.stores.consul.reading import ConsulReader
from dibs.stores.consul.renewal import ConsulRenewals
from dibs.stores.consul.sessions import ConsulSessions
from dibs.stores.consul.txn import deleted, packed, unchanged, written
from dibs.stores.consul.view import evicted_tokens
from dibs.stores.consul.waiting import ConsulWaiters
from dibs.stores.guarantees import Ability, Bound, Effect, Guarantees, Promise
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

ROOT = "dibs"
"""The prefix of all keys, unless the URL has a path."""

REMEMBERED = 20
"""The evicted grants of each name that are remembered, so that their holders can be told."""


def open_url(url: str, namespace: str, runtime: Runtime) -> ConsulStore:
    """``consul://host1:8500,host2/root`` and ``consuls://``, with TLS."""
    source, found, path = from_url(url, kind="consul", port=8500, tls=url.lower().startswith("consuls:"), ours=NAMES)
    root = path.strip("/") or ROOT
    if source.user:
        raise Misuse(f"{source}: write the token of Consul after a colon, as in consul://:TOKEN@host")
    if "//" in root:
        raise Misuse(f"{source}: the path is the prefix of the keys, and has no empty part")
    return ConsulStore(source, root, namespace, runtime, options_from(found))


class ConsulStore(Store):
    """Grants for the sessions of Consul; see docs/stores/consul.md."""

    longest_ttl: ClassVar[float] = LONGEST_TTL
    guarantees: ClassVar[Guarantees] = Guarantees(
        name="consul",
        good_for="locks over many machines, where Consul runs already; consensus decides who holds them",
        fence="the index of the transaction that granted it, in Consul's log; falls only if a datacenter is built anew "
        "from an old snapshot",
        wake="a blocking query on the ticket before its own",
        order="arrival; if the first waiter does not take a free lock for 0.5 s, any client that asks",
        freed="after 9/8 of the ttl, or up to twice that, as Consul ends sessions; then after the lock-delay, which is "
        "half of the ttl unless the URL says otherwise",
        waiter_crash=Bound(
            2.0,
            "The next one takes the lock after half a second; `dibs show` names the dead one until its session ends.",
        ),
        client_pause=Promise(Effect.FENCED, "The session ends by the leader's clock, and another gets the lock."),
        client_crash=Promise(
            Effect.FREED, "After the ttl, or up to about twice that, as Consul ends sessions; then the lock-delay runs."
        ),
        server_restart=Promise(
            Effect.KEPT, "A majority remembers; a new leader counts all ttls anew. A dev agent forgets everything."
        ),
        failover=Promise(
            Effect.KEPT,
            "The new leader has every grant, and counts all ttls anew. A lock-delay that was running is forgotten.",
        ),
        partition=Promise(Effect.FREED, "The holder is told in time; a minority grants nothing."),
        clock_jump=Promise(Effect.KEPT, "Consul's timers run on clocks that do not jump."),
        cannot=MappingProxyType(
            {
                Ability.PUNCTUAL: "Consul lets a session live for up to twice its ttl, and longer after an election; "
                "only what a living client dropped ends on time",
                Ability.SHARED: "one key is the lock, and one session has it; take etcd://, zookeeper:// or redis://",
                Ability.SEMAPHORE: "one key is the lock, and one session has it; take etcd://, zookeeper:// or redis://",
                Ability.RECORDS: "Consul's store is for small things that change rarely, and is no place for results; "
                "take redis:// or postgresql://",
            }
        ),
    )

    def __init__(self, source: HttpSource, root: str, namespace: str, runtime: Runtime, options: ConsulOptions) -> None:
        self._runtime, self._namespace = runtime, namespace
        self._naming = ConsulNaming(root, namespace)
        self._agent = Agent(source, runtime, token_from(source.password), options.datacenter)
        self._sessions = ConsulSessions(self._agent, self._naming, runtime, options)
        self._holdings = ConsulHoldings(runtime, self._give_up)
        self._reader = ConsulReader(self._agent, self._naming, runtime)
        self._waiting = ConsulWaiters(self._agent, runtime, self._sessions)
        shared = (self._agent, self._naming, runtime, self._sessions, self._holdings)
        self._grants = ConsulGrants(*shared, self._waiting, self._reader)
        self._leases = ConsulLeases(*shared, self._waiting, self._reader)
        self._renewals = ConsulRenewals(*shared, self._reader, self._leases)
        self._sessions.on_end = self._holdings.lose_all_of
        self.shortest_ttl = options.min_ttl  # type: ignore[misc] # the server's, which differs

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """One transaction; two if another client holds the lock."""
        return await self._grants.grant(ask, self._runtime.now() + within)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One request for each session, and one for 31 leases."""
        return await self._renewals.renew(claims, self._runtime.now() + within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """One transaction: delete the key of the lock, or of the ticket."""
        return await self._leases.release(name, token, self._runtime.now() + within)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """A blocking query on the ticket before ours, or on the lock."""
        await self._waiting.wait(ask, within)

    def queue_at_once(self, name: str) -> bool:
        """Whether the last ask for *name* with a ticket had to wait."""
        return self._grants.queue_at_once(name)

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Look who holds the lock, then one transaction: if that is still so, delete the key and note the eviction."""
        until, keys = self._runtime.now() + within, self._naming.keys(name)
        found = await self._reader.look(keys, until)
        holder, held = found.holder(name), found.held
        if holder is None or held is None or holder.fence != fence:
            return False
        by = signature(here(self._runtime.pid(), name, ""))
        before = evicted_tokens(found.evicted)[: REMEMBERED - 1]  # their holders may not have asked yet
        note = packed(token=found.token, fence=fence, reason=reason, by=by, at=wall_clock(), before=before)
        ops = [unchanged(held.key, held.modified), deleted(held.key), written(keys.evicted, note)]
        if isinstance(await self._agent.txn(ops, until - self._runtime.now()), ConsulRefusal):
            return False
        await self._leases.end_own(held, until)
        return True

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Read all keys of the names that begin with *prefix*, in one request."""
        return await self._reader.holders(prefix, self._runtime.now() + within)

    async def show(self, name: str, within: float) -> LockState:
        """Read all keys of *name*. An ask that is always refused tells whether a lock-delay runs."""
        return await self._reader.show(name, self._runtime.now() + within)

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Move the lease to a session of this client, and write this process into the value."""
        who = here(self._runtime.pid(), claim.name, note)
        facts = {"host": who.host, "pid": who.pid, "user": who.user, "note": note}
        await self._leases.attach(claim, facts, self._runtime.now() + within)

    async def detach(self, claim: Claim, within: float) -> None:
        """Move the lease to a session of its own, which ends after the ttl whatever becomes of this process."""
        await self._leases.detach(claim, self._runtime.now() + within)

    def compare(self, claim: Claim) -> dict[str, dict[str, object]]:
        """An operation for the caller's own transaction, which is refused unless this grant still holds."""
        holding = self._holdings.get(claim.token)
        if holding is None:
            raise Misuse(
                f"the lease on {claim.name!r} has moved to a session of its own: client.resume() it here first"
            )
        return unchanged(holding.keys.held, holding.index)

    def on_loss(self, call: Callable[[str, str, LossReason], None]) -> None:
        """Do *call* for every grant whose session turns out to have ended."""
        self._holdings.tell = call

    async def close(self) -> None:
        """Delete our tickets, end our sessions, and close the connections."""
        await self._holdings.close()
        await self._waiting.close()
        await self._sessions.close()
        await self._agent.close()

    def forked(self) -> None:
        """Forget sessions, grants and connections: they are the parent's."""
        self._agent.forked()
        for part in (self._sessions, self._holdings, self._waiting, self._grants):
            part.begin()

    def __repr__(self) -> str:
        return f"{self._agent}, namespace {self._namespace!r}"

    async def _give_up(self, holding: ConsulHolding) -> bool:
        return await self._leases.give_up(holding)
