"""Takes a ticket for a lock, tells whether it has its turn, and lets the servers call a waiter.

A server that is cut off from the others may answer reads for a while. It must not confirm a lock that the others have
granted to the next client meanwhile. So creating a node and renewing a lease are writes, which take a quorum, and the
queue is read only after the server has caught up with the leader. Each request goes out together with the reads that
belong to it: one round trip for each step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dibs.errors import StoreUnavailable
from dibs.runtime import Runtime
from dibs.share import other_slots, share_of
from dibs.stores.queue import call, inside, slots
from dibs.stores.store import Ask, Busy, Grant
from dibs.stores.zookeeper.facts import endless, fence_of, holder, moved
from dibs.stores.zookeeper.paths import Paths, queue_order
from dibs.stores.zookeeper.port.requests import (
    No,
    Node,
    Request,
    SessionEnded,
    catch_up,
    children,
    container,
    create,
    delete,
    lasting,
    passing,
    read,
    sure,
    together,
    write,
)
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.sessions import ZooKeeperSessions, lease_of
from dibs.stores.zookeeper.states import NodeEvent, TurnEvent, TurnState
from dibs.stores.zookeeper.ticket import ZooKeeperTicket
from dibs.stores.zookeeper.tickets import ZooKeeperTickets

SETTLED = 0.5
"""Seconds of waiting after which a node moves to the short session; a waiter that is served sooner pays nothing."""

UNTIL_CALLED = 5.0
"""Seconds after which a waiter asks again, in case that the call from the servers was lost."""


class ZooKeeperGrants:
    """Asks for locks, and waits for them, on behalf of one client."""

    def __init__(
        self, tickets: ZooKeeperTickets, sessions: ZooKeeperSessions, paths: Paths, runtime: Runtime, *, private: bool
    ) -> None:
        self._tickets, self._sessions, self._paths, self._runtime = tickets, sessions, paths, runtime
        self._private = private

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """Take a ticket, and tell whether it has its turn."""
        ticket = await self._tickets.attended(ask.token, until)
        try:
            session = await self._sessions.serving(ask.ttl, until)
            if ticket is None:
                ticket = self._tickets.add(ask, session, until)
            ticket.note_turn(TurnEvent.ASKED)
            while True:
                try:
                    return await self._ask(ticket, ask, until)
                except SessionEnded:  # and the next has begun
                    ticket.lost_session()
        finally:
            if ticket is not None:
                ticket.attendance.until = 0.0  # no call before it: an interrupt comes at calls
                ticket.attendance.seen_at = self._runtime.now()

    async def wait(self, token: str, within: float) -> None:
        """Wait until it may be the turn of *token*."""
        ticket = await self._tickets.attended(token, self._runtime.now() + within)
        if ticket is not None:
            until = self._runtime.now() + within
            try:
                if not await ticket.called.wait(min(within, SETTLED)):
                    await self._move_to_short_session(ticket, until)
                    await ticket.called.wait(max(0.0, until - self._runtime.now()))
            finally:
                ticket.attendance.until = 0.0
                ticket.attendance.seen_at = self._runtime.now()

    async def _ask(self, ticket: ZooKeeperTicket, ask: Ask, until: float) -> Grant | Busy:
        queue = await self._stand(ticket, until)
        turn, shares = queue.index(ticket.entry), [share_of(entry) for entry in queue]
        has_turn = turn < inside(shares)
        if has_turn and ticket.is_in_short_session and not await self._move(ticket, ticket.session, until):
            return await self._ask(ticket, ask, until)  # it lost its ticket in that moment
        ticket.note_turn(TurnEvent.GRANTED if has_turn else TurnEvent.QUEUED)
        if has_turn:
            self._tell(ticket, behind=len(queue) - turn - 1)
            ttl = lease_of(ticket.session.timeout)
            ticket.ends_at = self._runtime.now() + ttl
            return Grant(ticket.fence, ttl)
        held = slots(shares)
        if ticket.share and held and held != ticket.share.slots:
            await self._step_back(ticket, queue[0], until)
            raise other_slots(ask.name, ticket.share, held)
        first, parent = await (
            self._watch(ticket, queue, until) if ask.queue else self._step_back(ticket, queue[0], until)
        )
        if isinstance(first, Node) and isinstance(parent, Node):
            return Busy(holder(ask.name, queue[0], first, parent), UNTIL_CALLED, stuck=endless(first))
        return Busy(None, UNTIL_CALLED)

    async def _move_to_short_session(self, ticket: ZooKeeperTicket, until: float) -> None:
        """Move a waiter's node to the short session: if the waiter dies, the next one does not wait for its ttl."""
        if ticket.turn_state is not TurnState.WAITING or not ticket.has_node or ticket.is_in_short_session:
            return
        with contextlib.suppress(StoreUnavailable):  # the node stays where it is, or the next step finds it
            ticket.short_session = await self._sessions.short_session(ticket.session, until) or ticket.short_session
            if ticket.short_session is not None and not ticket.called.is_set():
                await self._move(ticket, ticket.short_session, until)

    async def _move(self, ticket: ZooKeeperTicket, session: ZooKeeperSession, until: float) -> bool:
        """Move the node to *session* in one step. It keeps its number, and so its turn. False if the node is gone."""
        await session.connected(until)
        if not ticket.has_node:  # a step that stood still is overtaken by another one
            return False
        path = f"{ticket.prefix}0{ticket.node.removeprefix(ticket.prefix)}"  # no node has the name of another
        ticket.written = moved(ticket.wanted, ticket.fence)
        moving = together(delete(ticket.node), passing(path, ticket.written, private=self._private))
        ticket.note_node(NodeEvent.MOVE_SENT)
        done, node = await session.ask(until, moving, read(path))
        if isinstance(done, list) and No.NODE in done:
            ticket.gone()
            return False
        sure([done, node, *(done if isinstance(done, list) else ())])
        if isinstance(node, Node):
            ticket.found(path, fence_of(node), node.owner)
        return isinstance(node, Node)

    def _tell(self, ticket: ZooKeeperTicket, *, behind: int) -> None:
        """Tell the next waiter that it may have its turn too, now that we have ours.

        Also if we did not wait: it may have looked before there was room, and have seen us ahead of it. We do not wait
        for the answer: if it is lost, the next waiter asks again by itself after a while.
        """
        if ticket.share and not ticket.told and (ticket.watched or behind):
            ticket.told = True
            ticket.session.send(write(ticket.node, ticket.written))

    async def _stand(self, ticket: ZooKeeperTicket, until: float) -> list[str]:
        """Make sure that our node is in the queue; answers the names of all nodes there, in order."""
        parents: list[Request] = []
        while True:
            ticket.settle()
            if ticket.is_unsure:
                await ticket.find(until)
            if ticket.is_over:  # only now: a node that we are not sure of may have moved to a session that lives
                ticket.gone()
            if ticket.has_node:
                names = await self._look(ticket, until)
            else:
                names = await self._create(ticket, parents, until)
                parents = self._parents(ticket, below=bool(parents))
            if isinstance(names, list) and ticket.entry in names:
                return queue_order(names)
            if isinstance(names, SessionEnded):
                ticket.lost_session()
            elif isinstance(names, StoreUnavailable):
                raise names
            else:
                ticket.gone()

    async def _create(self, ticket: ZooKeeperTicket, parents: Sequence[Request], until: float) -> object:
        session = ticket.session
        await session.connected(until)
        ticket.written = ticket.wanted
        making = create(ticket.prefix, ticket.wanted, private=self._private)
        ticket.note_node(NodeEvent.CREATE_SENT)
        replies = session.send(*parents, making, children(ticket.parent))
        ticket.creating(replies, len(parents))
        *above, _, names = await session.answers(replies, until)
        made = ticket.settle()
        if made is No.NODE:
            sure(above)  # the error that kept the parents from being created, if there is one
        return names if isinstance(made, tuple) else made

    async def _look(self, ticket: ZooKeeperTicket, until: float) -> object:
        """Read the names of the nodes, as new as the leader's: a server that is cut off may show deleted nodes.

        To let a quorum check it, as renewals do, would be one more write in each hand-over. A leader that has lost its
        quorum may answer for a moment yet, but grants nothing too early: the node ahead of us was deleted by a quorum,
        and our own session cannot end at the next leader before a whole timeout is over.
        """
        asked, names = await ticket.session.ask(until, catch_up(ticket.parent), children(ticket.parent))
        return asked if isinstance(asked, StoreUnavailable) else names

    async def _watch(self, ticket: ZooKeeperTicket, queue: Sequence[str], until: float) -> tuple[object, object]:
        """Let the servers call us when it may be our turn. Answers the first node of the queue, and the parent."""
        turn = queue.index(ticket.entry)
        awaited = call([share_of(entry) for entry in queue], turn)
        if awaited.position is None:
            return await self._watch_all(ticket, queue[: turn + 1], until)
        ahead = f"{ticket.parent}/{queue[awaited.position]}"
        ticket.watch(ahead)
        others = [read(f"{ticket.parent}/{queue[0]}")] if awaited.position else []
        parent, *found = sure(await ticket.session.ask(until, read(ticket.parent), *others, read(ahead, ticket.call)))
        if not isinstance(found[-1], Node):
            ticket.call()
        elif awaited.granted and found[-1].version and ticket.heeded != ahead:  # it told before we listened
            ticket.heeded = ahead
            ticket.call()
        return found[0], parent

    async def _watch_all(self, ticket: ZooKeeperTicket, queue: Sequence[str], until: float) -> tuple[object, object]:
        """Like `_watch`, but any change of the list calls us: nodes that go, and also nodes that come."""
        ticket.watch(ticket.parent)
        requests = read(ticket.parent), read(f"{ticket.parent}/{queue[0]}"), children(ticket.parent, ticket.call)
        parent, first, names = sure(await ticket.session.ask(until, *requests))
        if not isinstance(names, list) or not set(names).issuperset(queue):
            ticket.call()
        return first, parent

    async def _step_back(self, ticket: ZooKeeperTicket, first: str, until: float) -> tuple[object, object]:
        """Delete our node after a single try; if that fails, the watch deletes it later. Answers like `_watch`."""
        ticket.note_turn(TurnEvent.LEFT)
        ticket.note_node(NodeEvent.DELETE_SENT)
        requests = read(f"{ticket.parent}/{first}"), read(ticket.parent), delete(ticket.node)
        head, parent, deleted = await ticket.session.ask(until, *requests)
        if not isinstance(deleted, StoreUnavailable):
            self._tickets.drop(ticket)
        return head, parent

    def _parents(self, ticket: ZooKeeperTicket, *, below: bool) -> list[Request]:
        """The requests for missing parents: mostly the lock's own suffices; if not (*below*), all above it too."""
        own, private = container(ticket.parent, private=self._private), self._private
        if not below:
            return [own]
        *folders, base = self._paths.above
        above = [*(lasting(path, private=False) for path in folders), lasting(base, private=private)]
        return [*above, container(self._paths.space, private=private), own]
