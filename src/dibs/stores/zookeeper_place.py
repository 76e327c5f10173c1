"""One attempt and its node: whether it is there, or may be there, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder
from dibs.part import part_of
from dibs.ports.zookeeper import Session
from dibs.ports.zookeeper_requests import No, Node, Replies, SessionEnded, catch_up, children, read, sure
from dibs.runtime import Event
from dibs.stores.store import Ask
from dibs.stores.zookeeper_facts import attempt
from dibs.stores.zookeeper_paths import guid, in_line

OVERDUE = 0.5
"""Seconds by which a step may be late on a busy machine."""


class Place:
    """A place in the line of a lock; who is first in it has the lock, or the part of it that it wants."""

    __slots__ = (
        "_at",
        "_creating",
        "attended_until",
        "called",
        "deleting",
        "doubtful",
        "ends_at",
        "fence",
        "granted",
        "heeded",
        "left",
        "minded",
        "name",
        "node",
        "overdue_at",
        "owner",
        "parent",
        "part",
        "prefix",
        "ring",
        "seen_at",
        "session",
        "token",
        "told",
        "unsure",
        "wanted",
        "watched",
    )

    def __init__(
        self, ask: Ask, parent: str, session: Session, me: Holder, called: Event, ring: Callable[[], None]
    ) -> None:
        self.name, self.token, self.parent, self.session = ask.name, ask.token, parent, session
        self.called, self.ring = called, ring
        self.part = part_of(ask.token)
        self.prefix = f"{parent}/{guid(ask.token)}-"  # the server adds a number
        self.wanted = attempt(me)
        self.node = ""
        """The path of our node, if it is certainly ours."""
        self.fence = self.owner = 0
        self.unsure = False
        """Whether there may be a node that we do not know of."""
        self.granted = False
        self.ends_at = 0.0
        """When the lease is over, unless it is renewed."""
        self.attended_until = 0.0
        """Until when somebody who asks or waits right now has done so, even if an interrupt kept it from saying so; 0
        if nobody does."""
        self.overdue_at = 0.0
        """When that was first found to be past; 0 if it was not."""
        self.seen_at = 0.0
        """When somebody last did, or will have done at the latest."""
        self.left = False
        """Whether nobody wants it any more, so that its node only is to be deleted."""
        self.deleting = False
        """Whether a request to delete the node was sent."""
        self.minded = False
        """Whether the end of our own node calls us."""
        self.doubtful = False
        """Whether we were called: our node may be gone."""
        self.watched = ""
        """The node whose end calls us, or the parent, whose list does."""
        self.heeded = ""
        """The node ahead of ours that has told us that it has its turn."""
        self.told = False
        """Whether ours has told that."""
        self._creating: Replies | None = None
        self._at = 0

    def attend(self, until: float) -> None:
        """Somebody asks or waits, until *until*."""
        self.overdue_at = 0.0
        self.seen_at = self.attended_until = until + OVERDUE

    def is_attended(self, now: float) -> bool:
        """Whether somebody asks or waits."""
        return now < self.attended_until

    def is_forsaken(self, now: float) -> bool:
        """Whether nobody asks or waits, and nobody who did is about to go on: this process may have stood still."""
        if self.attended_until and not self.overdue_at and now >= self.attended_until:
            self.overdue_at = now
        return not self.attended_until or (0.0 < self.overdue_at <= now - OVERDUE)

    def creating(self, replies: Replies, at: int) -> None:
        """A request to create the node is on its way; its answer is that of *replies* with the index *at*."""
        self._creating, self._at = replies, at

    def settle(self) -> object:
        """What became of that request: nothing, if there is none. Raises what certainly failed.

        Also when whoever sent it was cancelled and its answer came afterwards.
        """
        if self._creating is None:
            return None
        made = self._creating.answers()[self._at]
        match made:
            case path, node:
                self.stands(path, node.fence, node.owner)
            case _:
                self.unsure = isinstance(made, OutcomeUnknown)
        self._creating = None  # last: whoever was interrupted before comes here again
        if isinstance(made, StoreUnavailable) and not isinstance(made, OutcomeUnknown | SessionEnded):
            raise made
        return made

    def stands(self, path: str, fence: int, owner: int) -> None:
        """Our node is there."""
        self.node, self.fence, self.owner, self.unsure = path, fence, owner, False
        self.deleting = self.told = False

    async def find(self, until: float) -> None:
        """Look for the node of a request whose answer did not come: it has our guid, and is of our session."""
        _, names = await self.session.ask(until, catch_up(self.parent), children(self.parent))
        if isinstance(names, StoreUnavailable):
            raise names
        ours = [f"{self.parent}/{name}" for name in in_line([] if names is No.NODE else names)]
        ours = [path for path in ours if path.startswith(self.prefix)]
        nodes = sure(await self.session.ask(until, *map(read, ours))) if ours else []
        for path, node in zip(ours, nodes, strict=True):
            if isinstance(node, Node) and node.owner not in self.session.ended:
                self.stands(path, node.fence, node.owner)
                return
        self.gone()

    def gone(self) -> None:
        """There is no node of ours."""
        self.node, self.unsure = "", False

    @property
    def entry(self) -> str:
        """How our node is called in the list."""
        return self.node.rpartition("/")[2]

    def watch(self, path: str) -> None:
        """Of all that is watched, only *path* is to call us from now on."""
        self.called.clear()
        if self.watched != path:
            self.look_away()
            self.watched = path

    def call(self, _event: object = None) -> None:
        """It may be our turn. kazoo calls this in its thread."""
        self.called.set()

    def doubt(self, _event: object = None) -> None:
        """Our own node may be gone, or the connection is. kazoo calls this in its thread."""
        self.minded, self.doubtful = False, True
        self.ring()

    def look_away(self) -> None:
        """Whatever we watched calls us no more."""
        if self.watched:
            self.session.forget(self.watched, self.call)

    @property
    def is_over(self) -> bool:
        """Whether the session that the node ends with has ended."""
        return self.owner in self.session.ended
