"""Grants leases in ZooKeeper: a node for each attempt, numbered by the ensemble, that ends with the client's session.

The nodes are in `zookeeper_paths`, what is asked when in `zookeeper_taking` and `zookeeper_giving`, how it reaches the
ensemble in `dibs.ports`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import ClassVar

from dibs.errors import LossReason, NotSupported
from dibs.holder import Holder, LockState, here
from dibs.ports.zookeeper_condition import Condition
from dibs.ports.zookeeper_source import Source, from_client, from_url
from dibs.runtime import Runtime
from dibs.stores import zookeeper_view as view
from dibs.stores.guarantees import Ability, Effect, Guarantees, Promise
from dibs.stores.store import Ask, Busy, Claim, Grant, Store
from dibs.stores.zookeeper_endings import Endings
from dibs.stores.zookeeper_giving import Giving
from dibs.stores.zookeeper_paths import Paths
from dibs.stores.zookeeper_places import Places
from dibs.stores.zookeeper_proof import Proofs
from dibs.stores.zookeeper_sessions import Sessions
from dibs.stores.zookeeper_taking import Taking


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
        wake="a watch on the node ahead, and on no other; the first who waits for a slot watches the list",
        order="arrival",
        freed="after the session's timeout, which is the ttl and up to 1 s",
        client_pause=Promise(
            Effect.FENCED, "The session ends by the leader's clock, and the next in line has the lock."
        ),
        client_crash=Promise(Effect.FREED, "After the ttl and up to 1 s."),
        server_restart=Promise(Effect.KEPT, "A grant is on the disks of a quorum before it is given out."),
        failover=Promise(
            Effect.KEPT, "Sessions outlive a leader, who is followed by one that gives each its whole timeout again."
        ),
        partition=Promise(
            Effect.FREED, "Only who reaches a quorum can extend a lease. Others are told before the session ends."
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

    def __init__(self, source: Source, namespace: str, runtime: Runtime) -> None:
        self._source, self._namespace, self._runtime = source, namespace, runtime
        self._paths = Paths(source.base, namespace)
        self._begin()

    def _begin(self) -> None:
        self._endings = Endings(self._runtime)
        self._sessions = Sessions(self._source, self._runtime, self._endings.ring)
        self._places = Places(self._paths, self._runtime, self._endings.ring)
        private = self._source.private
        self._taking = Taking(self._places, self._sessions, self._paths, self._runtime, private=private)
        self._giving = Giving(self._places, self._runtime)
        self._proofs = Proofs(self._places, self._runtime)
        weakref.finalize(self, _abandon, self._endings, self._sessions).atexit = False

    def __repr__(self) -> str:
        return f"<ZooKeeperStore {self._source.shown} namespace={self._namespace!r}>"

    def on_loss(self, call: Callable[[str, str, LossReason], None]) -> None:
        """Tell *call* when a session ends."""
        self._endings.tell = call

    def crowded(self, name: str) -> bool:
        """Always: whoever asks has a node in line, and who waits may as well keep it."""
        return True

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Create a node and see who stands before it, in one round trip."""
        self._endings.watch(self._giving)
        return await self._taking.grant(ask, self._runtime.now() + within)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """Let a quorum say that the nodes are there."""
        return await self._proofs.renew(claims, self._runtime.now() + within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Delete the node."""
        return await self._giving.release(token, self._runtime.now() + within)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Wait until it may be the turn of *ask*."""
        await self._taking.wait(ask.token, within)

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Delete the node of that holder."""
        until, by = self._runtime.now() + within, here(self._runtime.pid(), name, "")
        desk, private = await self._sessions.desk(until), self._source.private
        return await view.evict(desk, self._paths, by, fence, reason, until, private=private)

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Who is in front in each line."""
        until = self._runtime.now() + within
        return await view.holders(await self._sessions.desk(until), self._paths, prefix, until)

    async def show(self, name: str, within: float) -> LockState:
        """The line, and what its parent remembers."""
        until = self._runtime.now() + within
        return await view.show(await self._sessions.desk(until), self._paths, name, until)

    async def detach(self, claim: Claim, within: float) -> None:
        """Impossible: the node belongs to the session."""
        raise NotSupported(
            "a node in ZooKeeper ends with its session and cannot be handed over; take redis:// or postgresql://"
        )

    def compare(self, claim: Claim) -> Condition:
        """The node is there: for a transaction of the caller's own KazooClient."""
        return Condition(self._places.node(claim))

    async def close(self) -> None:
        """End the sessions, and with them all that is still held."""
        await self._endings.close()
        await self._sessions.close()

    def forked(self) -> None:
        """Begin anew in a forked child."""
        tell = self._endings.tell
        self._sessions.forked()
        self._begin()
        self._endings.tell = tell


def _abandon(endings: Endings, sessions: Sessions) -> None:
    """The store was dropped without being closed."""
    endings.stop()
    sessions.abandon()
