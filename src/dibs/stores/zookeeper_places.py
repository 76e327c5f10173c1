"""What one client has in its sessions: taking a place in line, learning that it is lost, giving it back.

A server that is cut off from the others may answer reads for a while, and must not let anybody hold what the others
have given to the next. So a node is created, and a lease extended, by a write, which takes a quorum; and whose turn it
is, is read after the leader was asked. Each request goes out with the reads that belong to it: one round trip a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dibs.errors import LeaseLost, LossReason, OutcomeUnknown, StoreUnavailable
from dibs.holder import here
from dibs.ports.zookeeper import Session
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
    together,
    write,
)
from dibs.runtime import Runtime
from dibs.stores.store import Ask, Busy, Claim, Grant
from dibs.stores.zookeeper_facts import broken, holder
from dibs.stores.zookeeper_paths import Paths, in_line
from dibs.stores.zookeeper_place import Place
from dibs.stores.zookeeper_sessions import Sessions, lease_of

UNTIL_CALLED = 5.0
"""Seconds after which a waiter asks again: it need not, the end of the one ahead calls it."""

GLANCE = 0.002
"""Seconds between two looks whether a place is free of who looks after it right now."""

REMEMBERED = 10_000
"""Tokens whose loss is remembered until somebody asks."""


class Places:
    """The places of one client, by token."""

    def __init__(
        self, sessions: Sessions, paths: Paths, runtime: Runtime, ring: Callable[[], None], *, private: bool
    ) -> None:
        self._sessions, self._paths, self._runtime, self._ring = sessions, paths, runtime, ring
        self._private, self._mutex = private, runtime.mutex()
        self.all: dict[str, Place] = {}
        self.reasons: dict[str, LossReason] = {}
        """Why a token lost its lock; forgotten when its owner asks."""

    # --- taking ------------------------------------------------------------------------------------------------

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """Take a place in line, and tell whether it is the first."""
        place = await self._attended(ask.token, until)
        try:
            session = await self._sessions.serving(ask.ttl, until)
            if place is None:
                place = self._place(ask, session, until)
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
        """Wait until the one ahead is gone."""
        place = await self._attended(token, self._runtime.now() + within)
        if place is not None:
            try:
                await place.called.wait(within)
            finally:
                place.attended_until = 0.0
                place.seen_at = self._runtime.now()

    def _place(self, ask: Ask, session: Session, until: float) -> Place:
        me = here(self._runtime.pid(), ask.name, ask.note)
        place = Place(ask, self._paths.parent(ask.name), session, me, self._runtime.event(), self._ring)
        place.attend(until)
        self.all[ask.token] = place
        return place

    async def _attended(self, token: str, until: float) -> Place | None:
        """The place of *token*, which nobody else looks after until it is left: two would undo each other's work."""
        while True:
            with self._mutex:
                place = self.all.get(token)
                if place is None:
                    return None
                if not place.is_attended(self._runtime.now()):
                    place.attend(until)
                    return place
            if self._runtime.now() >= until:
                raise StoreUnavailable(place.session.source.shown, "another step for the same token is going on")
            await self._runtime.sleep(GLANCE)

    async def _ask(self, place: Place, ask: Ask, until: float) -> Grant | Busy:
        line = await self._stand(place, until)
        turn = line.index(place.node.rpartition("/")[2])
        place.granted = turn == 0
        if place.granted:
            ttl = lease_of(place.session.timeout)
            place.ends_at = self._runtime.now() + ttl
            return Grant(place.fence, ttl)
        first, ahead = (f"{place.parent}/{line[index]}" for index in (0, turn - 1))
        found = await (self._watch if ask.queue else self._step_back)(place, first, ahead, until)
        known = all(isinstance(node, Node) for node in found)
        return Busy(holder(ask.name, *found) if known else None, UNTIL_CALLED)

    async def _stand(self, place: Place, until: float) -> list[str]:
        """Who stands in line, ourselves included."""
        parents: list[Request] = []
        while True:
            place.settle()
            if place.is_over:
                place.gone()
            if place.unsure:
                await self._find(place, until)
            if place.node:
                names = await self._look(place, until)
            else:
                names = await self._create(place, parents, until)
                parents = self._parents(place, below=bool(parents))
            if isinstance(names, list) and place.node.rpartition("/")[2] in names:
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

    async def _find(self, place: Place, until: float) -> None:
        """Look for the node of a request whose answer did not come: it has our guid, and is of our session."""
        session = place.session
        _, names = await session.ask(until, catch_up(place.parent), children(place.parent))
        if isinstance(names, StoreUnavailable):
            raise names
        ours = [f"{place.parent}/{name}" for name in in_line([] if names is No.NODE else names)]
        ours = [path for path in ours if path.startswith(place.prefix)]
        nodes = sure(await session.ask(until, *map(read, ours))) if ours else []
        for path, node in zip(ours, nodes, strict=True):
            if isinstance(node, Node) and node.owner not in session.ended:
                place.stands(path, node.fence, node.owner)
                return
        place.gone()

    async def _watch(self, place: Place, first: str, ahead: str, until: float) -> Sequence[Any]:
        """See who is first, and be called when the one ahead goes."""
        place.called.clear()
        if place.watched != ahead:
            self._forget(place)
            place.watched = ahead
        others = [read(place.parent)] if first == ahead else [read(place.parent), read(first)]
        parent, *found = sure(await place.session.ask(until, *others, read(ahead, place.call)))
        if not isinstance(found[-1], Node):
            place.call()
        return found[0], parent

    async def _step_back(self, place: Place, first: str, ahead: str, until: float) -> Sequence[Any]:
        """Leave nothing behind after a single try. What cannot be deleted now is deleted later."""
        place.left, place.deleting = True, True
        *found, deleted = await place.session.ask(until, read(first), read(place.parent), delete(place.node))
        if not isinstance(deleted, StoreUnavailable):
            self.drop(place)
        return found

    def _parents(self, place: Place, *, below: bool) -> list[Request]:
        """What has to be created first: mostly only the lock's own parent is missing."""
        own, private = container(place.parent, private=self._private), self._private
        if not below:
            return [own]
        *folders, base = self._paths.above
        above = [*(lasting(path, private=False) for path in folders), lasting(base, private=private)]
        return [*above, container(self._paths.space, private=private), own]

    # --- losing ------------------------------------------------------------------------------------------------

    def node(self, claim: Claim) -> str:
        """The path of its node; `LeaseLost` if it is known to be over."""
        place = self.held(claim)
        if place is None:
            raise LeaseLost(claim.name, claim.fence, self.reasons.get(claim.token, LossReason.TAKEN))
        return place.node

    def held(self, claim: Claim) -> Place | None:
        """The place that *claim* names; None if it is over, as far as is known."""
        place = self.all.get(claim.token)
        if place is None or not place.granted or place.left:
            return None
        return place if (place.name, place.fence) == (claim.name, claim.fence) else None

    async def mind(self, session: Session, places: Sequence[Place], until: float) -> dict[Place, LossReason]:
        """Let the end of each node call us from now on; tell which have ended already, and why."""
        await session.connected(until)
        for place in places:
            place.minded, place.doubtful = True, False
        nodes = await session.ask(until, *(read(place.node, place.doubt) for place in places))
        lost = {}
        for place, node in zip(places, nodes, strict=True):
            if isinstance(node, StoreUnavailable):
                place.minded = False
            if node is No.NODE and not place.left:  # what we have once seen there, no server shows as not yet there
                lost[place] = await self.lost(place, until)
        return lost

    async def lost(self, place: Place, until: float) -> LossReason:
        """The node of *place* is gone: nothing is left of it here, but why."""
        reason = await self._why(place, until)
        self.drop(place)
        self.remember(place.token, reason)
        return reason

    async def _why(self, place: Place, until: float) -> LossReason:
        """What ended a grant behind our back."""
        if place.is_over:
            return LossReason.SESSION_ENDED
        try:
            [node] = await place.session.ask(until, read(self._paths.broken))
        except StoreUnavailable:
            return LossReason.TAKEN
        eviction = broken(node).of(place.name)
        return LossReason.EVICTED if eviction and eviction.fence == place.fence else LossReason.TAKEN

    # --- giving back -------------------------------------------------------------------------------------------

    async def release(self, token: str, until: float) -> LossReason | None:
        """Delete the node; that of a holder together with writing down its fence."""
        place = await self._attended(token, until)
        if place is None:
            return self.reasons.pop(token, LossReason.TAKEN)
        place.left = True
        try:
            return await self._give_back(place, until)
        finally:
            place.attended_until = 0.0
            place.seen_at = self._runtime.now()

    async def _give_back(self, place: Place, until: float) -> LossReason | None:
        place.settle()
        if place.unsure:
            await self._find(place, until)
        if place.is_over or not place.node:
            self.drop(place)
            return LossReason.SESSION_ENDED if place.is_over else LossReason.TAKEN
        was_there = await self._delete(place, until)
        self.drop(place)
        if not place.granted:
            return LossReason.TAKEN
        return None if was_there else await self._why(place, until)

    async def _delete(self, place: Place, until: float) -> bool:
        """Delete the node; tell whether it was there. If an earlier try was not answered, that one may have done it."""
        await place.session.connected(until)
        tried, place.deleting = place.deleting, True
        if place.granted:
            noted = write(place.parent, b"%d" % place.fence)
            [answer] = await place.session.ask(until, together(delete(place.node), noted))
            if isinstance(answer, list):
                gone = answer[0] is No.NODE
                if gone or not any(isinstance(each, No | StoreUnavailable) for each in answer):
                    return not gone or tried
            tried = tried or isinstance(answer, OutcomeUnknown)
        [answer] = sure(await place.session.ask(until, delete(place.node)))
        return answer is not No.NODE or tried

    def drop(self, place: Place) -> None:
        """There is nothing of *place* any more."""
        self._forget(place)
        self.all.pop(place.token, None)

    def remember(self, token: str, reason: LossReason) -> None:
        """Keep why *token* lost its lock, for whoever asks next."""
        while len(self.reasons) >= REMEMBERED:
            self.reasons.pop(next(iter(self.reasons)))
        self.reasons[token] = reason

    def _forget(self, place: Place) -> None:
        if place.watched:
            place.session.forget(place.watched, place.call)
