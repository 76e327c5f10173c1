"""Takes a place in the queue of a lock, tells whose turn it is, and lets the servers call a waiter.

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
from dibs.stores.zookeeper.place import ZooKeeperPlace
from dibs.stores.zookeeper.places import ZooKeeperPlaces
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

SETTLED = 0.5
"""Seconds of waiting after which a node moves to the short session; a waiter that is served sooner pays nothing."""

UNTIL_CALLED = 5.0
"""Seconds after which a waiter asks again, in case that the call from the servers was lost."""


class ZooKeeperGrants:
    """Asks for locks, and waits for them, on behalf of one client."""

    def __init__(
        self, places: ZooKeeperPlaces, sessions: ZooKeeperSessions, paths: Paths, runtime: Runtime, *, private: bool
    ) -> None:
        self._places, self._sessions, self._paths, self._runtime = places, sessions, paths, runtime
        self._private = private

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """Take a place in the queue, and tell whether it has its turn."""
        place = await self._places.attended(ask.token, until)
        try:
            session = await self._sessions.serving(ask.ttl, until)
            if place is None:
                place = self._places.add(ask, session, until)
            place.note_turn(TurnEvent.ASKED)
            while True:
                try:
                    return await self._ask(place, ask, until)
                except SessionEnded:  # and the next has begun
                    place.lost_session()
        finally:
            if place is not None:
                place.attendance.until = 0.0  # no call before it: an interrupt comes at calls
                place.attendance.seen_at = self._runtime.now()

    async def wait(self, token: str, within: float) -> None:
        """Wait until it may be the turn of *token*."""
        place = await self._places.attended(token, self._runtime.now() + within)
        if place is not None:
            until = self._runtime.now() + within
            try:
                if not await place.called.wait(min(within, SETTLED)):
                    await self._move_to_short_session(place, until)
                    await place.called.wait(max(0.0, until - self._runtime.now()))
            finally:
                place.attendance.until = 0.0
                place.attendance.seen_at = self._runtime.now()

    async def _ask(self, place: ZooKeeperPlace, ask: Ask, until: float) -> Grant | Busy:
        queue = await self._stand(place, until)
        turn, shares = queue.index(place.entry), [share_of(entry) for entry in queue]
        has_turn = turn < inside(shares)
        if has_turn and place.is_in_short_session and not await self._move(place, place.session, until):
            return await self._ask(place, ask, until)  # it lost its place in that moment
        place.note_turn(TurnEvent.GRANTED if has_turn else TurnEvent.QUEUED)
        if has_turn:
            self._tell(place, behind=len(queue) - turn - 1)
            ttl = lease_of(place.session.timeout)
            place.ends_at = self._runtime.now() + ttl
            return Grant(place.fence, ttl)
        held = slots(shares)
        if place.share and held and held != place.share.slots:
            await self._step_back(place, queue[0], until)
            raise other_slots(ask.name, place.share, held)
        first, parent = await (
            self._watch(place, queue, until) if ask.queue else self._step_back(place, queue[0], until)
        )
        if isinstance(first, Node) and isinstance(parent, Node):
            return Busy(holder(ask.name, queue[0], first, parent), UNTIL_CALLED, stuck=endless(first))
        return Busy(None, UNTIL_CALLED)

    async def _move_to_short_session(self, place: ZooKeeperPlace, until: float) -> None:
        """Move a waiter's node to the short session: if the waiter dies, the next one does not wait for its ttl."""
        if place.turn_state is not TurnState.WAITING or not place.has_node or place.is_in_short_session:
            return
        with contextlib.suppress(StoreUnavailable):  # it stays where it is; or the next step finds it
            place.short_session = await self._sessions.short_session(place.session, until) or place.short_session
            if place.short_session is not None and not place.called.is_set():
                await self._move(place, place.short_session, until)

    async def _move(self, place: ZooKeeperPlace, session: ZooKeeperSession, until: float) -> bool:
        """Move the node to *session* in one step. It keeps its number, and so its turn. False if the node is gone."""
        await session.connected(until)
        if not place.has_node:  # a step that stood still is overtaken by another one
            return False
        path = f"{place.prefix}0{place.node.removeprefix(place.prefix)}"  # no node has the name of another
        place.written = moved(place.wanted, place.fence)
        moving = together(delete(place.node), passing(path, place.written, private=self._private))
        place.note_node(NodeEvent.MOVE_SENT)
        done, node = await session.ask(until, moving, read(path))
        if isinstance(done, list) and No.NODE in done:
            place.gone()
            return False
        sure([done, node, *(done if isinstance(done, list) else ())])
        if isinstance(node, Node):
            place.found(path, fence_of(node), node.owner)
        return isinstance(node, Node)

    def _tell(self, place: ZooKeeperPlace, *, behind: int) -> None:
        """Tell the next waiter that it may have its turn too, now that we have ours.

        Also if we did not wait: it may have looked before there was room, and have seen us ahead of it. We do not wait
        for the answer: if it is lost, the next waiter asks again by itself after a while.
        """
        if place.share and not place.told and (place.watched or behind):
            place.told = True
            place.session.send(write(place.node, place.written))

    async def _stand(self, place: ZooKeeperPlace, until: float) -> list[str]:
        """Make sure that our node is in the queue; answers the names of all nodes there, in order."""
        parents: list[Request] = []
        while True:
            place.settle()
            if place.is_unsure:
                await place.find(until)
            if place.is_over:  # only now: a node that we are not sure of may have moved to a session that lives
                place.gone()
            if place.has_node:
                names = await self._look(place, until)
            else:
                names = await self._create(place, parents, until)
                parents = self._parents(place, below=bool(parents))
            if isinstance(names, list) and place.entry in names:
                return queue_order(names)
            if isinstance(names, SessionEnded):
                place.lost_session()
            elif isinstance(names, StoreUnavailable):
                raise names
            else:
                place.gone()

    async def _create(self, place: ZooKeeperPlace, parents: Sequence[Request], until: float) -> object:
        session = place.session
        await session.connected(until)
        place.written = place.wanted
        making = create(place.prefix, place.wanted, private=self._private)
        place.note_node(NodeEvent.CREATE_SENT)
        replies = session.send(*parents, making, children(place.parent))
        place.creating(replies, len(parents))
        *above, _, names = await session.answers(replies, until)
        made = place.settle()
        if made is No.NODE:
            sure(above)  # the error that kept the parents from being created, if there is one
        return names if isinstance(made, tuple) else made

    async def _look(self, place: ZooKeeperPlace, until: float) -> object:
        """Read the names of the nodes, as new as the leader's: a server that is cut off may show deleted nodes.

        To let a quorum check it, as renewals do, would be one more write in each hand-over. A leader that has lost its
        quorum may answer for a moment yet, but grants nothing too early: the node ahead of us was deleted by a quorum,
        and our own session cannot end at the next leader before a whole timeout is over.
        """
        asked, names = await place.session.ask(until, catch_up(place.parent), children(place.parent))
        return asked if isinstance(asked, StoreUnavailable) else names

    async def _watch(self, place: ZooKeeperPlace, queue: Sequence[str], until: float) -> tuple[object, object]:
        """Let the servers call us when it may be our turn. Answers the first node of the queue, and the parent."""
        turn = queue.index(place.entry)
        awaited = call([share_of(entry) for entry in queue], turn)
        if awaited.place is None:
            return await self._watch_all(place, queue[: turn + 1], until)
        ahead = f"{place.parent}/{queue[awaited.place]}"
        place.watch(ahead)
        others = [read(f"{place.parent}/{queue[0]}")] if awaited.place else []
        parent, *found = sure(await place.session.ask(until, read(place.parent), *others, read(ahead, place.call)))
        if not isinstance(found[-1], Node):
            place.call()
        elif awaited.granted and found[-1].version and place.heeded != ahead:  # it told before we listened
            place.heeded = ahead
            place.call()
        return found[0], parent

    async def _watch_all(self, place: ZooKeeperPlace, queue: Sequence[str], until: float) -> tuple[object, object]:
        """Like `_watch`, but any change of the list calls us: nodes that go, and also nodes that come."""
        place.watch(place.parent)
        requests = read(place.parent), read(f"{place.parent}/{queue[0]}"), children(place.parent, place.call)
        parent, first, names = sure(await place.session.ask(until, *requests))
        if not isinstance(names, list) or not set(names).issuperset(queue):
            place.call()
        return first, parent

    async def _step_back(self, place: ZooKeeperPlace, first: str, until: float) -> tuple[object, object]:
        """Delete our node after a single try; if that fails, the watch deletes it later. Answers like `_watch`."""
        place.note_turn(TurnEvent.LEFT)
        place.note_node(NodeEvent.DELETE_SENT)
        requests = read(f"{place.parent}/{first}"), read(place.parent), delete(place.node)
        head, parent, deleted = await place.session.ask(until, *requests)
        if not isinstance(deleted, StoreUnavailable):
            self._places.drop(place)
        return head, parent

    def _parents(self, place: ZooKeeperPlace, *, below: bool) -> list[Request]:
        """The requests for missing parents: mostly the lock's own suffices; if not (*below*), all above it too."""
        own, private = container(place.parent, private=self._private), self._private
        if not below:
            return [own]
        *folders, base = self._paths.above
        above = [*(lasting(path, private=False) for path in folders), lasting(base, private=private)]
        return [*above, container(self._paths.space, private=private), own]
