"""Watches for tickets that end without a release: session or ttl ended, holder evicted, waiter gone."""

from __future__ import annotations

import contextlib
import math

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.watch import WatchLoop
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.release import ZooKeeperReleases
from dibs.stores.zookeeper.states import IllegalTransition, WatchState
from dibs.stores.zookeeper.ticket import ZooKeeperTicket
from dibs.stores.zookeeper.tickets import ZooKeeperTickets

ABSENT = 1.0
"""Seconds after which a waiter that neither asks nor waits loses its ticket: it would block all behind it."""

NAP = 0.5
"""Seconds between two looks of the watch, at most."""

MOST = 500
"""The most nodes that one step begins to watch."""

STEP = 0.5
"""Seconds that a request of the watch may take."""


class ZooKeeperWatch:
    """Watches the tickets of one client while there are any."""

    def __init__(
        self, loop: WatchLoop, tickets: ZooKeeperTickets, releases: ZooKeeperReleases, runtime: Runtime
    ) -> None:
        self._loop, self._tickets, self._releases, self._runtime = loop, tickets, releases, runtime

    def start(self) -> None:
        """Watch the tickets until there have been none for a while."""
        self._loop.start(self)

    async def close(self) -> None:
        """Stop watching, and wait for that."""
        self._loop.stop()
        await self._loop.join(2 * STEP)

    # --- what the loop asks for ----------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Whether there is no ticket."""
        return not self._tickets.all

    def next_end(self) -> float:
        """When the first grant ends unless it is renewed."""
        return min(
            (ticket.ends_at for ticket in list(self._tickets.all.values()) if ticket.is_granted), default=math.inf
        )

    async def look(self) -> None:
        """Give up each ticket that is over, and let the servers watch the nodes of those that stay."""
        for ticket in list(self._tickets.all.values()):
            if not self._loop.closed:
                await self._look_at(ticket)
        await self._watch_nodes()

    # ---------------------------------------------------------------------------------------------------------

    async def _look_at(self, ticket: ZooKeeperTicket) -> None:
        tickets, now = self._tickets, self._runtime.now()
        if ticket.owner and ticket.is_over:
            await self._session_ended(ticket)
        elif not ticket.attendance.is_over(now):
            return
        elif ticket.holds and ticket.ends_at <= now:
            tickets.remember(ticket.token, LossReason.EXPIRED)
            await self._delete(ticket)
        elif ticket.is_left or (not ticket.is_granted and ticket.attendance.seen_at + ABSENT <= now):
            await self._delete(ticket)

    async def _watch_nodes(self) -> None:
        """Let the servers tell us when a holder's node is deleted. Only for locks held for a while: most are short."""
        old = self._runtime.now() - NAP
        by_session: dict[ZooKeeperSession, list[ZooKeeperTicket]] = {}
        for ticket in list(self._tickets.all.values()):
            is_due = ticket.watch_state is WatchState.UNSET and ticket.attendance.seen_at <= old
            if ticket.holds and (is_due or ticket.watch_state is WatchState.FIRED):
                by_session.setdefault(ticket.session, []).append(ticket)
        for session, unwatched in by_session.items():
            await self._tickets.watch_nodes(session, unwatched[:MOST], self._runtime.now() + STEP)

    async def _session_ended(self, ticket: ZooKeeperTicket) -> None:
        tickets = self._tickets
        if not ticket.attendance.is_over(self._runtime.now()):
            ticket.call()  # a waiter takes a new ticket
        elif ticket.is_unsure:  # its node may be in a session that lives: the release looks for it
            if ticket.holds:
                tickets.report(ticket, LossReason.SESSION_ENDED)
            await self._delete(ticket)
        elif ticket.holds:
            tickets.lost(ticket, None)
        else:
            tickets.drop(ticket)

    async def _delete(self, ticket: ZooKeeperTicket) -> None:
        # The next look tries again, until the session has ended; also if a step that stood still came in between.
        with contextlib.suppress(StoreUnavailable, IllegalTransition):
            await self._releases.release(ticket.token, self._runtime.now() + STEP)
