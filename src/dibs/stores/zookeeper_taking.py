"""How a place in line is taken, and what a waiter there listens for.

A server that is cut off from the others may answer reads for a while, and must not let anybody hold what the others
have given to the next. So a node is created, and a lease extended, by a write, which takes a quorum; and whose turn it
is, is read after the leader was asked. Each request goes out with the reads that belong to it: one round trip a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.errors import StoreUnavailable
from dibs.part import other_slots, part_of
from dibs.ports.zookeeper_requests import (
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
    read,
    sure,
    write,
)
from dibs.runtime import Runtime
from dibs.stores.line import call, inside, slots
from dibs.stores.store import Ask, Busy, Grant
from dibs.stores.zookeeper_facts import holder
from dibs.stores.zookeeper_paths import Paths, in_line
from dibs.stores.zookeeper_place import Place
from dibs.stores.zookeeper_places import Places
from dibs.stores.zookeeper_sessions import Sessions, lease_of

UNTIL_CALLED = 5.0
"""Seconds after which a waiter asks again: it need not, the end of the one ahead calls it."""


class Taking:
    """The attempts of one client."""

    def __init__(self, places: Places, sessions: Sessions, paths: Paths, runtime: Runtime, *, private: bool) -> None:
        self._places, self._sessions, self._paths, self._runtime = places, sessions, paths, runtime
        self._private = private

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """Take a place in line, and tell whether it has its turn."""
        place = await self._places.attended(ask.token, until)
        try:
            session = await self._sessions.serving(ask.ttl, until)
            if place is None:
                place = self._places.add(ask, session, until)
            place.left = False
            while True:
                try:
                    return await self._ask(place, ask, until)
                except SessionEnded:  # and the next has begun
                    place.gone()
        finally:
            if place is not None:
                place.attended_until = 0.0  # no call before it: an interrupt comes at calls
                place.seen_at = self._runtime.now()

    async def wait(self, token: str, within: float) -> None:
        """Wait until it may be its turn."""
        place = await self._places.attended(token, self._runtime.now() + within)
        if place is not None:
            try:
                await place.called.wait(within)
            finally:
                place.attended_until = 0.0
                place.seen_at = self._runtime.now()

    async def _ask(self, place: Place, ask: Ask, until: float) -> Grant | Busy:
        line = await self._stand(place, until)
        turn, parts = line.index(place.entry), [part_of(entry) for entry in line]
        place.granted = turn < inside(parts)
        if place.granted:
            self._tell(place, behind=len(line) - turn - 1)
            ttl = lease_of(place.session.timeout)
            place.ends_at = self._runtime.now() + ttl
            return Grant(place.fence, ttl)
        held = slots(parts)
        if place.part and held and held != place.part.slots:
            await self._step_back(place, line[0], until)
            raise other_slots(ask.name, place.part, held)
        first, parent = await (self._watch(place, line, until) if ask.queue else self._step_back(place, line[0], until))
        if isinstance(first, Node) and isinstance(parent, Node):
            return Busy(holder(ask.name, line[0], first, parent), UNTIL_CALLED)
        return Busy(None, UNTIL_CALLED)

    def _tell(self, place: Place, *, behind: int) -> None:
        """Let the next know that there may be room for it too, now that we are in.

        Also if we did not wait: it may have looked before there was room, and have seen us stand before it. Nobody
        waits for the answer: if it is lost, the next asks by itself after a while.
        """
        if place.part and not place.told and (place.watched or behind):
            place.told = True
            place.session.send(write(place.node, place.wanted))

    async def _stand(self, place: Place, until: float) -> list[str]:
        """Who stands in line, ourselves included."""
        parents: list[Request] = []
        while True:
            place.settle()
            if place.is_over:
                place.gone()
            if place.unsure:
                await place.find(until)
            if place.node:
                names = await self._look(place, until)
            else:
                names = await self._create(place, parents, until)
                parents = self._parents(place, below=bool(parents))
            if isinstance(names, list) and place.entry in names:
                return in_line(names)
            if isinstance(names, StoreUnavailable) and not isinstance(names, SessionEnded):
                raise names
            place.gone()

    async def _create(self, place: Place, parents: Sequence[Request], until: float) -> object:
        session = place.session
        await session.connected(until)
        making = create(place.prefix, place.wanted, private=self._private)
        place.unsure = True  # an interrupt may come between the request and the note of it
        replies = session.send(*parents, making, children(place.parent))
        place.creating(replies, len(parents))
        *above, _, names = await session.answers(replies, until)
        made = place.settle()
        if made is No.NODE:
            sure(above)  # perhaps we may not create the parents
        return names if isinstance(made, tuple) else made

    async def _look(self, place: Place, until: float) -> object:
        """The list, as new as the leader's: a server that is cut off from it may show what has long been deleted.

        A check by a quorum, as renewals have it, would be a write in the middle of each hand-over. A leader that the
        others have left may answer for a moment yet, but gives nobody the place of another: who was ahead of us is
        gone by the word of a quorum, and it is a whole timeout until our own session can end at the next leader.
        """
        asked, names = await place.session.ask(until, catch_up(place.parent), children(place.parent))
        return asked if isinstance(asked, StoreUnavailable) else names

    async def _watch(self, place: Place, line: Sequence[str], until: float) -> tuple[object, object]:
        """See who is first, and be called when it may be our turn. Answers the node of the first, and the parent."""
        turn = line.index(place.entry)
        awaited = call([part_of(entry) for entry in line], turn)
        if awaited.place is None:
            return await self._watch_all(place, line[: turn + 1], until)
        ahead = f"{place.parent}/{line[awaited.place]}"
        place.watch(ahead)
        others = [read(f"{place.parent}/{line[0]}")] if awaited.place else []
        parent, *found = sure(await place.session.ask(until, read(place.parent), *others, read(ahead, place.call)))
        if not isinstance(found[-1], Node):
            place.call()
        elif awaited.granted and found[-1].version and place.heeded != ahead:  # it told before we listened
            place.heeded = ahead
            place.call()
        return found[0], parent

    async def _watch_all(self, place: Place, line: Sequence[str], until: float) -> tuple[object, object]:
        """The same for the end of anybody in *line*, up to ourselves. Also whoever comes calls us, but only us."""
        place.watch(place.parent)
        requests = read(place.parent), read(f"{place.parent}/{line[0]}"), children(place.parent, place.call)
        parent, first, names = sure(await place.session.ask(until, *requests))
        if not isinstance(names, list) or not set(names).issuperset(line):
            place.call()
        return first, parent

    async def _step_back(self, place: Place, first: str, until: float) -> tuple[object, object]:
        """Leave nothing behind after a single try. What cannot be deleted now is deleted later."""
        place.left, place.deleting = True, True
        requests = read(f"{place.parent}/{first}"), read(place.parent), delete(place.node)
        head, parent, deleted = await place.session.ask(until, *requests)
        if not isinstance(deleted, StoreUnavailable):
            self._places.drop(place)
        return head, parent

    def _parents(self, place: Place, *, below: bool) -> list[Request]:
        """What has to be created first: mostly only the lock's own parent is missing."""
        own, private = container(place.parent, private=self._private), self._private
        if not below:
            return [own]
        *folders, base = self._paths.above
        above = [*(lasting(path, private=False) for path in folders), lasting(base, private=private)]
        return [*above, container(self._paths.space, private=private), own]
