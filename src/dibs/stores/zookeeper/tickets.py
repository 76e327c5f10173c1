"""The tickets of one client in the queues, by token, and how it learns that one of them is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dibs.errors import LeaseLost, LossReason, StoreUnavailable
from dibs.holder import here
from dibs.runtime import Runtime
from dibs.stores.store import Ask, Claim
from dibs.stores.zookeeper.facts import evictions_in
from dibs.stores.zookeeper.paths import Paths
from dibs.stores.zookeeper.port.requests import No, Request, read
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.states import WatchEvent
from dibs.stores.zookeeper.ticket import ZooKeeperTicket

GLANCE = 0.002
"""Seconds between two looks whether another step for the same token is done."""

REMEMBERED = 10_000
"""Lost tokens whose reason is remembered until their owner asks."""


class ZooKeeperTickets:
    """The tickets of one client, by token."""

    def __init__(self, paths: Paths, runtime: Runtime, wake: Callable[[], None]) -> None:
        self._paths, self._runtime, self._wake = paths, runtime, wake
        self._mutex = runtime.mutex()
        self.all: dict[str, ZooKeeperTicket] = {}
        self.reasons: dict[str, LossReason] = {}
        """Why a token lost its lock; forgotten when its owner asks."""
        self.tell: Callable[[str, str, LossReason], None] | None = None
        """Called at each loss, at once, with name, token and reason."""

    # --- coming and going --------------------------------------------------------------------------------------

    def add(self, ask: Ask, session: ZooKeeperSession, until: float) -> ZooKeeperTicket:
        """A new ticket for *ask*, attended until *until*."""
        me = here(self._runtime.pid(), ask.name, ask.note)
        ticket = ZooKeeperTicket(
            ask, self._paths.parent(ask.name), session, me, self._runtime.event(), self._wake, until
        )
        self.all[ask.token] = ticket
        return ticket

    async def attended(self, token: str, until: float) -> ZooKeeperTicket | None:
        """The ticket of *token*, for the caller alone: two steps at once would undo each other's work."""
        while True:
            with self._mutex:
                ticket = self.all.get(token)
                if ticket is None:
                    return None
                if not ticket.attendance.is_going_on(self._runtime.now()):
                    ticket.attendance.begin(until)
                    return ticket
            if self._runtime.now() >= until:
                raise StoreUnavailable(ticket.session.source.shown, "another step for the same token is going on")
            await self._runtime.sleep(GLANCE)

    def drop(self, ticket: ZooKeeperTicket) -> None:
        """Forget *ticket*: nothing of it is left on the servers."""
        ticket.look_away()
        self.all.pop(ticket.token, None)

    def remember(self, token: str, reason: LossReason) -> None:
        """Keep why *token* lost its lock until its owner asks."""
        while len(self.reasons) >= REMEMBERED:
            self.reasons.pop(next(iter(self.reasons)))
        self.reasons[token] = reason

    # --- losing ------------------------------------------------------------------------------------------------

    def node(self, claim: Claim) -> str:
        """The path of the node of *claim*; raises `LeaseLost` if the lease is known to be lost."""
        ticket = self.held(claim)
        if ticket is None:
            raise LeaseLost(claim.name, claim.fence, self.reasons.get(claim.token, LossReason.TAKEN))
        return ticket.node

    def held(self, claim: Claim) -> ZooKeeperTicket | None:
        """The ticket that holds for *claim*; None if the lease is known to be lost."""
        ticket = self.all.get(claim.token)
        if ticket is None or not ticket.holds:
            return None
        return ticket if (ticket.name, ticket.fence) == (claim.name, claim.fence) else None

    async def watch_nodes(self, session: ZooKeeperSession, tickets: Sequence[ZooKeeperTicket], until: float) -> None:
        """Watch the nodes: the servers tell us when one is deleted. Tickets whose node is gone already are lost."""
        reads = [read(ticket.node, ticket.node_changed) for ticket in tickets]
        try:
            await session.connected(until)
            for ticket in tickets:
                ticket.note_watch(WatchEvent.SENT)
            *nodes, evictions = await session.ask(until, *reads, self.evictions())
        except StoreUnavailable as error:
            nodes, evictions = [error] * len(tickets), None
        for ticket, node in zip(tickets, nodes, strict=True):
            gone = node is No.NODE  # what we have once seen there, no server shows as not yet there
            if isinstance(node, StoreUnavailable):
                ticket.note_watch(WatchEvent.FAILED)
                gone = ticket.seen_deleted  # no answer now, but the watch has told us before
            if gone and not ticket.is_left:
                self.lost(ticket, evictions)

    def evictions(self) -> Request:
        """The request for the evictions: sent together with the question whether a node is there."""
        return read(self._paths.evictions)

    def lost(self, ticket: ZooKeeperTicket, evictions: object) -> LossReason:
        """The node of *ticket* is gone: forget the ticket, remember why, and tell its holder now."""
        reason = self.why(ticket, evictions)
        self.ended(ticket, reason)
        return reason

    def ended(self, ticket: ZooKeeperTicket, reason: LossReason) -> None:
        """Forget *ticket*, remember *reason*, and tell its holder."""
        self.drop(ticket)
        self.report(ticket, reason)

    def report(self, ticket: ZooKeeperTicket, reason: LossReason) -> None:
        """Remember why the holder of *ticket* lost its lock, and tell it."""
        self.remember(ticket.token, reason)
        if self.tell is not None:
            self.tell(ticket.name, ticket.token, reason)

    def why(self, ticket: ZooKeeperTicket, evictions: object) -> LossReason:
        """Why the node of *ticket* is gone. *evictions* is what the servers answered; it may be an error."""
        if ticket.is_over:
            return LossReason.SESSION_ENDED
        return LossReason.EVICTED if evictions_in(evictions).includes(ticket.name, ticket.fence) else LossReason.TAKEN
