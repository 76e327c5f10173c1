"""Gives places back: deletes the node, and for a holder writes down its fence in the same step."""

from __future__ import annotations

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.zookeeper.facts import last_fence
from dibs.stores.zookeeper.place import ZooKeeperPlace
from dibs.stores.zookeeper.places import ZooKeeperPlaces
from dibs.stores.zookeeper.port.requests import No, Node, Request, delete, read, sure, together, write
from dibs.stores.zookeeper.states import NodeEvent, NodeState, TurnEvent


class ZooKeeperReleases:
    """Releases the places of one client."""

    def __init__(self, places: ZooKeeperPlaces, runtime: Runtime) -> None:
        self.places, self._runtime = places, runtime

    async def release(self, token: str, until: float) -> LossReason | None:
        """Delete the node of *token*. None if it held the lock; if not, why it did not."""
        place = await self.places.attended(token, until)
        if place is None:
            return self.places.reasons.pop(token, LossReason.TAKEN)
        try:
            place.note_turn(TurnEvent.LEFT)
            return await self._give_back(place, until)
        finally:
            place.attendance.until = 0.0
            place.attendance.seen_at = self._runtime.now()

    async def _give_back(self, place: ZooKeeperPlace, until: float) -> LossReason | None:
        place.settle()
        if place.is_unsure:
            await place.find(until)
        if place.is_over or not place.has_node:
            self.places.drop(place)
            return LossReason.SESSION_ENDED if place.is_over else LossReason.TAKEN
        was_there = await self._delete(place, until)
        self.places.drop(place)
        if not place.is_granted:
            return LossReason.TAKEN
        return None if was_there else await self._why(place, until)

    async def _why(self, place: ZooKeeperPlace, until: float) -> LossReason:
        try:
            [evictions] = await place.session.ask(until, self.places.evictions())
        except StoreUnavailable as error:  # it is gone all the same
            evictions = error
        return self.places.why(place, evictions)

    async def _delete(self, place: ZooKeeperPlace, until: float) -> bool:
        """Delete the node; tell whether it was there. If an earlier try was not answered, it may have deleted it."""
        await place.session.connected(until)
        tried = place.node_state is NodeState.DELETING
        while noted := await self._note(place, until):
            place.note_node(NodeEvent.DELETE_SENT)
            [answer] = await place.session.ask(until, together(delete(place.node), noted))
            if isinstance(answer, list):
                gone = answer[0] is No.NODE
                if gone or not any(isinstance(each, No | StoreUnavailable) for each in answer):
                    return not gone or tried
                if answer[1] is No.MATCH:
                    continue
            tried = tried or isinstance(answer, OutcomeUnknown)
            break
        place.note_node(NodeEvent.DELETE_SENT)
        [answer] = sure(await place.session.ask(until, delete(place.node)))
        return answer is not No.NODE or tried

    async def _note(self, place: ZooKeeperPlace, until: float) -> Request | None:
        """The request that writes down the fence: for a holder whose fence is higher than the last. None for others.

        An exclusive holder has the highest fence so far. Of several holders, one that came later may have released
        before, or may release right now. If the last fence cannot be read, only the node is deleted.
        """
        if not place.is_granted or place.share is None:
            return write(place.parent, b"%d" % place.fence) if place.is_granted else None
        [parent] = await place.session.ask(until, read(place.parent))
        if not isinstance(parent, Node) or last_fence(parent) > place.fence:
            return None
        return write(place.parent, b"%d" % place.fence, parent.version)
