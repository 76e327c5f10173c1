"""Renews leases: a quorum confirms that their nodes are there, for many in one request. What is not there is lost."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.store import Claim, RenewAnswer, settled
from dibs.stores.zookeeper.port.requests import No, SessionEnded, check, read, sure, together
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.ticket import ZooKeeperTicket
from dibs.stores.zookeeper.tickets import ZooKeeperTickets

BATCH = 200
"""Leases that one request renews: with the longest names it has two thirds of the size that a server accepts."""


class ZooKeeperRenewals:
    """Renews the leases of one client."""

    def __init__(self, tickets: ZooKeeperTickets, runtime: Runtime) -> None:
        self._tickets, self._runtime = tickets, runtime

    async def renew(self, claims: Sequence[Claim], until: float) -> list[LossReason | None]:
        """Renew *claims*, with one request for each session. For each claim: None, or why its lock is lost."""
        answers: list[RenewAnswer] = [None] * len(claims)
        by_session: dict[ZooKeeperSession, list[int]] = {}
        tickets = [self._tickets.held(claim) for claim in claims]
        for index, (claim, ticket) in enumerate(zip(claims, tickets, strict=True)):
            if ticket is None:
                answers[index] = self._tickets.reasons.get(claim.token, LossReason.TAKEN)
            else:
                by_session.setdefault(ticket.session, []).append(index)
        for session, indexes in by_session.items():
            for begin in range(0, len(indexes), BATCH):
                batch = indexes[begin : begin + BATCH]
                held = [(ticket, claims[index].ttl) for index in batch if (ticket := tickets[index]) is not None]
                for index, answer in zip(batch, await self._renew(session, held, until), strict=True):
                    answers[index] = answer
        return settled(answers)

    async def _renew(
        self, session: ZooKeeperSession, held: Sequence[tuple[ZooKeeperTicket, float]], until: float
    ) -> list[RenewAnswer]:
        """Ask the leader, which asks a quorum, whether all nodes are there. If not, it names the first that is not.

        The same answer tells who evicted whom, so an evicted holder learns its reason before anything else is asked.
        """
        try:
            checks = together(*(check(ticket.node) for ticket, _ in held))
            asked, evictions = await session.ask(until, checks, self._tickets.evictions())
            [checked] = sure([asked])
            if No.NODE not in checked:
                sure(checked)
        except SessionEnded:
            return [LossReason.SESSION_ENDED] * len(held)
        except StoreUnavailable as error:
            return [error] * len(held)
        if all(each is True for each in checked):
            for ticket, ttl in held:
                ticket.ends_at = max(ticket.ends_at, self._runtime.now() + ttl)
            return [None] * len(held)
        lost = self._losses([ticket for ticket, _ in held], checked, evictions)
        left = [ticket for ticket, _ in held if ticket not in lost]
        if left:
            lost |= await self._look(session, left, until)
        rest = [each for each in held if each[0] not in lost]
        renewed = iter(await self._renew(session, rest, until) if rest else [])
        return [lost[ticket] if ticket in lost else next(renewed) for ticket, _ in held]

    async def _look(
        self, session: ZooKeeperSession, tickets: Sequence[ZooKeeperTicket], until: float
    ) -> dict[ZooKeeperTicket, LossReason]:
        """Look in one step which of the other nodes are gone: there may be many. If it fails, renewals find out."""
        try:
            reads = [read(ticket.node) for ticket in tickets]
            *nodes, evictions = await session.ask(until, *reads, self._tickets.evictions())
        except StoreUnavailable:
            return {}
        return self._losses(tickets, nodes, evictions)

    def _losses(
        self, tickets: Sequence[ZooKeeperTicket], found: Sequence[object], evictions: object
    ) -> dict[ZooKeeperTicket, LossReason]:
        gone = [ticket for ticket, node in zip(tickets, found, strict=True) if node is No.NODE]
        return {ticket: self._tickets.lost(ticket, evictions) for ticket in gone}
