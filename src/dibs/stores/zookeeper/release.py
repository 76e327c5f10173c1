"""Gives tickets back: deletes the node, and for a holder writes down its fence in the same step."""

from __future__ import annotations

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.zookeeper.facts import last_fence
from dibs.stores.zookeeper.port.requests import No, Node, Request, delete, read, sure, together, write
from dibs.stores.zookeeper.states import NodeEvent, NodeState, TurnEvent
from dibs.stores.zookeeper.ticket import ZooKeeperTicket
from dibs.stores.zookeeper.tickets import ZooKeeperTickets


class ZooKeeperReleases:
    """Releases the tickets of one client."""

    def __init__(self, tickets: ZooKeeperTickets, runtime: Runtime) -> None:
        self.tickets, self._runtime = tickets, runtime

    async def release(self, token: str, until: float) -> LossReason | None:
        """Delete the node of *token*. None if it held the lock; if not, why it did not."""
        ticket = await self.tickets.attended(token, until)
        if ticket is None:
            return self.tickets.reasons.pop(token, LossReason.TAKEN)
        try:
            ticket.note_turn(TurnEvent.LEFT)
            return await self._give_back(ticket, until)
        finally:
            ticket.attendance.until = 0.0
            ticket.attendance.seen_at = self._runtime.now()

    async def _give_back(self, ticket: ZooKeeperTicket, until: float) -> LossReason | None:
        ticket.settle()
        if ticket.is_unsure:
            await ticket.find(until)
        if ticket.is_over or not ticket.has_node:
            self.tickets.drop(ticket)
            return LossReason.SESSION_ENDED if ticket.is_over else LossReason.TAKEN
        was_there = await self._delete(ticket, until)
        self.tickets.drop(ticket)
        if not ticket.is_granted:
            return LossReason.TAKEN
        return None if was_there else await self._why(ticket, until)

    async def _why(self, ticket: ZooKeeperTicket, until: float) -> LossReason:
        try:
            [evictions] = await ticket.session.ask(until, self.tickets.evictions())
        except StoreUnavailable as error:  # it is gone all the same
            evictions = error
        return self.tickets.why(ticket, evictions)

    async def _delete(self, ticket: ZooKeeperTicket, until: float) -> bool:
        """Delete the node; tell whether it was there. If an earlier try was not answered, it may have deleted it."""
        await ticket.session.connected(until)
        tried = ticket.node_state is NodeState.DELETING
        while noted := await self._note(ticket, until):
            ticket.note_node(NodeEvent.DELETE_SENT)
            [answer] = await ticket.session.ask(until, together(delete(ticket.node), noted))
            if isinstance(answer, list):
                gone = answer[0] is No.NODE
                if gone or not any(isinstance(each, No | StoreUnavailable) for each in answer):
                    return not gone or tried
                if answer[1] is No.MATCH:
                    continue
            tried = tried or isinstance(answer, OutcomeUnknown)
            break
        ticket.note_node(NodeEvent.DELETE_SENT)
        [answer] = sure(await ticket.session.ask(until, delete(ticket.node)))
        return answer is not No.NODE or tried

    async def _note(self, ticket: ZooKeeperTicket, until: float) -> Request | None:
        """The request that writes down the fence: for a holder whose fence is higher than the last. None for others.

        An exclusive holder has the highest fence so far. Of several holders, one that came later may have released
        before, or may release right now. If the last fence cannot be read, only the node is deleted.
        """
        if not ticket.is_granted or ticket.share is None:
            return write(ticket.parent, b"%d" % ticket.fence) if ticket.is_granted else None
        [parent] = await ticket.session.ask(until, read(ticket.parent))
        if not isinstance(parent, Node) or last_fence(parent) > ticket.fence:
            return None
        return write(ticket.parent, b"%d" % ticket.fence, parent.version)
