"""How a place is given back: its node is deleted, that of a holder together with writing down its fence."""

from __future__ import annotations

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.ports.zookeeper_requests import No, Node, Request, delete, read, sure, together, write
from dibs.runtime import Runtime
from dibs.stores.zookeeper_facts import last_fence
from dibs.stores.zookeeper_place import Place
from dibs.stores.zookeeper_places import Places


class Giving:
    """The releases of one client."""

    def __init__(self, places: Places, runtime: Runtime) -> None:
        self.places, self._runtime = places, runtime

    async def release(self, token: str, until: float) -> LossReason | None:
        """Delete the node; tell why *token* did not hold the lock, unless it did."""
        place = await self.places.attended(token, until)
        if place is None:
            return self.places.reasons.pop(token, LossReason.TAKEN)
        place.left = True
        try:
            return await self._give_back(place, until)
        finally:
            place.attended_until = 0.0
            place.seen_at = self._runtime.now()

    async def _give_back(self, place: Place, until: float) -> LossReason | None:
        place.settle()
        if place.unsure:
            await place.find(until)
        if place.is_over or not place.node:
            self.places.drop(place)
            return LossReason.SESSION_ENDED if place.is_over else LossReason.TAKEN
        was_there = await self._delete(place, until)
        self.places.drop(place)
        if not place.granted:
            return LossReason.TAKEN
        return None if was_there else await self.places.why(place, until)

    async def _delete(self, place: Place, until: float) -> bool:
        """Delete the node; tell whether it was there. If an earlier try was not answered, that one may have done it."""
        await place.session.connected(until)
        tried = place.deleting
        while noted := await self._note(place, until):
            place.deleting = True
            [answer] = await place.session.ask(until, together(delete(place.node), noted))
            if isinstance(answer, list):
                gone = answer[0] is No.NODE
                if gone or not any(isinstance(each, No | StoreUnavailable) for each in answer):
                    return not gone or tried
                if answer[1] is No.MATCH:
                    continue
            tried = tried or isinstance(answer, OutcomeUnknown)
            break
        place.deleting = True
        [answer] = sure(await place.session.ask(until, delete(place.node)))
        return answer is not No.NODE or tried

    async def _note(self, place: Place, until: float) -> Request | None:
        """Writing down its fence, if it is a holder's and higher than the last.

        Who had all of the lock is the last to whom it was given. Of several who hold it, one that came later may have
        given back before, or do so right now. If the last cannot be read, only the node is deleted.
        """
        if not place.granted or place.part is None:
            return write(place.parent, b"%d" % place.fence) if place.granted else None
        [parent] = await place.session.ask(until, read(place.parent))
        if not isinstance(parent, Node) or last_fence(parent) > place.fence:
            return None
        return write(place.parent, b"%d" % place.fence, parent.version)
