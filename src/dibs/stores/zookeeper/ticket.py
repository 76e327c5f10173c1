"""One attempt to take a lock: its node in the queue, whether that is or may be there, and in which session."""

from __future__ import annotations

from collections.abc import Callable

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder
from dibs.runtime import Event
from dibs.stores.store import Ask
from dibs.stores.zookeeper.attendance import Attendance
from dibs.stores.zookeeper.facts import attempt, fence_of
from dibs.stores.zookeeper.paths import guid, queue_order
from dibs.stores.zookeeper.port.requests import No, Node, Replies, SessionEnded, catch_up, children, is_end, read, sure
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.progress import PlaceProgress
from dibs.stores.zookeeper.states import NodeEvent, WatchEvent


class ZooKeeperTicket(PlaceProgress):
    """A ticket in the queue of a lock. The first in the queue holds the lock, or the share that it asks for."""

    def __init__(
        self,
        ask: Ask,
        parent: str,
        session: ZooKeeperSession,
        me: Holder,
        called: Event,
        wake: Callable[[], None],
        until: float,
    ) -> None:
        super().__init__()
        self.name, self.token, self.parent, self.session = ask.name, ask.token, parent, session
        self.short_session: ZooKeeperSession | None = None
        """The session to which the node may move while it waits."""
        self.called, self.wake = called, wake
        self.share = ask.share
        self.prefix = f"{parent}/{guid(ask.token)}-"  # the server adds a number
        self.wanted = attempt(me)
        self.written = self.wanted
        """The data that our node has."""
        self.node = ""
        """The path of our node; empty while we know of none."""
        self.fence = self.owner = 0
        """The fence, and the id of the session, of the last node that we knew of."""
        self.ends_at = 0.0
        """When the lease is over, unless it is renewed."""
        self.attendance = Attendance(until)
        self.seen_deleted = False
        """Whether the watch on our node fired because it was deleted."""
        self.watched = ""
        """The node whose change calls us: one ahead of ours, or the parent, whose list changes."""
        self.heeded = ""
        """The node ahead of ours whose word that it has its turn we have taken note of."""
        self.told = False
        """Whether our node has told the next one that we have our turn."""
        self._creating: Replies | None = None
        self._at = 0

    # --- events ------------------------------------------------------------------------------------------------

    def creating(self, replies: Replies, at: int) -> None:
        """A request to create the node is on its way; its answer is that of *replies* with the index *at*."""
        self._creating, self._at = replies, at

    def settle(self) -> object:
        """Note the answer to that request, and return it; None if there is no request. Raises an error that is certain.

        The step that sent the request may have been cancelled before the answer came.
        """
        if self._creating is None:
            return None
        made = self._creating.answers()[self._at]
        match made:
            case path, node:
                self.found(path, fence_of(node), node.owner)
            case OutcomeUnknown():
                pass  # `find` looks for it
            case _:
                self.gone()
        self._creating = None  # last: if an interrupt comes before, the next step comes here again
        if isinstance(made, StoreUnavailable) and not isinstance(made, OutcomeUnknown | SessionEnded):
            raise made
        return made

    def found(self, path: str, fence: int, owner: int) -> None:
        """Note that our node is there, at *path*, in the session *owner*."""
        self.node, self.fence, self.owner = path, fence, owner
        self.seen_deleted = self.told = False
        self.note_node(NodeEvent.FOUND)

    def gone(self) -> None:
        """Note that there is no node of ours."""
        self.note_node(NodeEvent.GONE)
        self.node = ""

    def lost_session(self) -> None:
        """Note that a session of ours has ended. If the node may be in another one, `find` looks there."""
        if self.short_session is None:
            self.gone()
        else:
            self.note_node(NodeEvent.SESSION_LOST)

    def node_changed(self, event: object = None) -> None:
        """Wake the watch: our node changed or is gone, or the connection broke. kazoo calls this in its thread."""
        self.seen_deleted = self.seen_deleted or is_end(event)
        self.note_watch(WatchEvent.CALLED)
        self.wake()

    # --- what follows from them ----------------------------------------------------------------------------------

    @property
    def entry(self) -> str:
        """The name of our node in the list."""
        return self.node.rpartition("/")[2]

    @property
    def is_over(self) -> bool:
        """Whether the session of the node has ended."""
        return self._has_ended(self.owner)

    @property
    def is_in_short_session(self) -> bool:
        """Whether the node is in another session than the one in which it is to hold."""
        return self.has_node and self.owner != self.session.id

    def _has_ended(self, owner: int) -> bool:
        return owner in self.session.ended or (self.short_session is not None and owner in self.short_session.ended)

    # --- looking and listening -----------------------------------------------------------------------------------

    async def find(self, until: float) -> None:
        """Look for the node of a request whose answer did not come: it has our guid, and is in a session of ours."""
        if self.short_session is not None:  # its earlier requests are done before this one, or never
            answers = await self.short_session.ask(until, catch_up(self.parent))
            if not isinstance(answers[0], SessionEnded):
                sure(answers)
        _, names = await self.session.ask(until, catch_up(self.parent), children(self.parent))
        if isinstance(names, StoreUnavailable):
            raise names
        ours = [f"{self.parent}/{name}" for name in queue_order([] if names is No.NODE else names)]
        ours = [path for path in ours if path.startswith(self.prefix)]
        nodes = sure(await self.session.ask(until, *map(read, ours))) if ours else []
        for path, node in zip(ours, nodes, strict=True):
            if isinstance(node, Node) and not self._has_ended(node.owner):
                self.found(path, fence_of(node), node.owner)
                return
        self.gone()

    def watch(self, path: str) -> None:
        """Let only changes of *path* call us from now on."""
        self.called.clear()
        if self.watched != path:
            self.look_away()
            self.watched = path

    def call(self, _event: object = None) -> None:
        """Wake the waiter: it may be our turn. kazoo calls this in its thread."""
        self.called.set()

    def look_away(self) -> None:
        """Let no change call us from now on."""
        if self.watched:
            self.session.forget(self.watched, self.call)
