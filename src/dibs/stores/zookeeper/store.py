"""The store for ZooKeeper: a node for each attempt, numbered by the ensemble, that ends with the client's session."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import ClassVar

from dibs.errors import LossReason, NotSupported
from dibs.holder import Holder, LockState, here
from dibs.runtime import Runtime
from dibs.stores.guarantees import Ability, Bound, Effect, Guarantees, Promise
from dibs.stores.store import Ask, Busy, Claim, Grant, Store
from dibs.stores.watch import WatchLoop
from dibs.stores.zookeeper import view
from dibs.stores.zookeeper.grant import ZooKeeperGrants
from dibs.stores.zookeeper.paths import Paths
from dibs.stores.zookeeper.port.condition import Condition
from dibs.stores.zookeeper.port.source import ZooKeeperSource, from_client, from_url
from dibs.stores.zookeeper.release import ZooKeeperReleases
from dibs.stores.zookeeper.renewal import ZooKeeperRenewals
from dibs.stores.zookeeper.sessions import ZooKeeperSessions
from dibs.stores.zookeeper.tickets import ZooKeeperTickets
from dibs.stores.zookeeper.watch import NAP, ZooKeeperWatch


def open_url(url: str, namespace: str, runtime: Runtime) -> ZooKeeperStore:
    """Make the store for the ensemble that *url* names."""
    return ZooKeeperStore(from_url(url), namespace, runtime)


def open_client(client: object, namespace: str, runtime: Runtime) -> ZooKeeperStore:
    """Make the store for the ensemble that *client*, a KazooClient of the caller, is connected to."""
    return ZooKeeperStore(from_client(client), namespace, runtime)


class ZooKeeperStore(Store):
    """Ephemeral sequential nodes; see docs/stores/zookeeper.md."""

    guarantees: ClassVar[Guarantees] = Guarantees(
        name="zookeeper",
        good_for="locks that survive the death of any server, in strict order, where ZooKeeper runs already",
        fence="the zxid that created the holder's node: the ensemble's own order of all writes; never falls while the "
        "ensemble keeps its data",
        wake="a watch on the node ahead, and on no other; the first waiter for a slot watches the list",
        order="arrival",
        freed="after the session's timeout, which is the ttl and up to 1 s",
        waiter_crash=Bound(
            7.0,
            "After half a second of waiting its node is in a session of 4 s, which servers with the usual tick of 2 s "
            "may end up to 2 s late; if a waiter dies sooner, its node stays for as long as a holder's.",
        ),
        client_pause=Promise(
            Effect.FENCED, "The session ends by the leader's clock, and the next in line has the lock."
        ),
        client_crash=Promise(Effect.FREED, "After the ttl and up to 1 s."),
        server_restart=Promise(Effect.KEPT, "A grant is on the disks of a quorum before it is given out."),
        failover=Promise(
            Effect.KEPT, "Sessions outlive a leader; the next leader gives each session its whole timeout again."
        ),
        partition=Promise(
            Effect.FREED,
            "Only clients that reach a quorum renew a lease. Other holders are told before the session ends.",
        ),
        clock_jump=Promise(Effect.KEPT, "No wall clock decides."),
        cannot=MappingProxyType(
            {
                Ability.EXPIRY: "a node ends with the session of its client, which lasts as long as that lives; "
                "what is not renewed there is deleted by the client itself",
                Ability.HANDOVER: "a node belongs to one session; take redis:// or postgresql:// to hand a lease to "
                "another process",
                Ability.RECORDS: "an ensemble has all its data in memory, and is no place for results; take "
                "postgresql:// or redis://",
            }
        ),
    )
    shortest_ttl: ClassVar[float] = 1.0
    """kazoo sends its signs of life up to 0.4 s apart however short the session is, and a broken connection takes it
    twice that to notice; servers with the usual settings give no session of less than 4 s anyway."""
    longest_ttl: ClassVar[float] = 2_147_000.0
    """A timeout has 31 bits of milliseconds. The servers have a limit of their own, `maxSessionTimeout`."""

    def __init__(self, source: ZooKeeperSource, namespace: str, runtime: Runtime) -> None:
        self._source, self._namespace, self._runtime = source, namespace, runtime
        self._paths = Paths(source.base, namespace)
        self._begin()

    def _begin(self) -> None:
        loop = WatchLoop(self._runtime, "dibs sessions", NAP)
        self._sessions = ZooKeeperSessions(self._source, self._runtime, loop.wake)
        self._tickets = ZooKeeperTickets(self._paths, self._runtime, loop.wake)
        private = self._source.private
        self._grants = ZooKeeperGrants(self._tickets, self._sessions, self._paths, self._runtime, private=private)
        self._releases = ZooKeeperReleases(self._tickets, self._runtime)
        self._renewals = ZooKeeperRenewals(self._tickets, self._runtime)
        self._watch = ZooKeeperWatch(loop, self._tickets, self._releases, self._runtime)
        self._mind_no_loop: Callable[[], None] | None = None
        owner = self._runtime.pid()
        weakref.finalize(self, _abandon, owner, self._runtime, loop, self._sessions).atexit = False

    def __repr__(self) -> str:
        return f"<ZooKeeperStore {self._source.shown} namespace={self._namespace!r}>"

    def on_loss(self, call: Callable[[str, str, LossReason], None]) -> None:
        """Let *call* be told of each loss at once."""
        self._tickets.tell = call

    def queue_at_once(self, name: str) -> bool:
        """Always true: each ask has a node in the queue, and a waiter may as well keep it."""
        return True

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Create a node and see which nodes are ahead of it, in one round trip."""
        self._watch.start()
        if self._mind_no_loop is None:
            self._mind_no_loop = self._runtime.when_loop_closes(self._loop_closed)
        return await self._grants.grant(ask, self._runtime.now() + within)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """Let a quorum confirm that the nodes are there."""
        return await self._renewals.renew(claims, self._runtime.now() + within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Delete the node."""
        return await self._releases.release(token, self._runtime.now() + within)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Wait until it may be the turn of *ask*."""
        await self._grants.wait(ask.token, within)

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Delete the node of the holder of *name* that has *fence*."""
        until, by = self._runtime.now() + within, here(self._runtime.pid(), name, "")
        observer, private = await self._sessions.observer(until), self._source.private
        return await view.evict(observer, self._paths, by, fence, reason, until, private=private)

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """The holders of all names that begin with *prefix*."""
        until = self._runtime.now() + within
        return await view.holders(await self._sessions.observer(until), self._paths, prefix, until)

    async def show(self, name: str, within: float) -> LockState:
        """The queue of *name*, and what its parent node remembers."""
        until = self._runtime.now() + within
        return await view.show(await self._sessions.observer(until), self._paths, name, until)

    async def detach(self, claim: Claim, within: float) -> None:
        """Refused: a node belongs to its session."""
        raise NotSupported(
            "a node in ZooKeeper ends with its session and cannot be handed over; take redis:// or postgresql://"
        )

    def compare(self, claim: Claim) -> Condition:
        """The condition that the node of *claim* is there, for a transaction of the caller's own KazooClient."""
        return Condition(self._tickets.node(claim))

    async def close(self) -> None:
        """End the sessions, and with them all leases that are still held."""
        if self._mind_no_loop is not None:
            self._mind_no_loop()
        await self._watch.close()
        await self._sessions.close()

    def forked(self) -> None:
        """Begin anew in a forked child: sessions and tickets are the parent's."""
        tell = self._tickets.tell
        self._sessions.forked()
        self._begin()
        self._tickets.tell = tell

    def _loop_closed(self) -> None:
        """End the sessions: without the loop no lease can be renewed or released, but kazoo would keep them alive."""
        for ticket in list(self._tickets.all.values()):
            self._tickets.ended(ticket, LossReason.SESSION_ENDED)
        self._sessions.abandon()


def _abandon(owner: int, runtime: Runtime, loop: WatchLoop, sessions: ZooKeeperSessions) -> None:
    """End the sessions of a store that was dropped without `close`; not in a forked child: they are the parent's."""
    if runtime.pid() == owner:
        loop.stop()
        sessions.abandon()
