"""A channel to each of several Redis servers, for one thread at a time: writes to all, reads from any that speaks."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Sequence
from typing import Any

from dibs.errors import StoreUnavailable
from dibs.stores.redlock.port.channel_blocking import BlockingChannel, BlockingNodeConfig, ChannelEvents
from dibs.stores.redlock.port.nodes import Asker, NodeAnswer, NodeCall, Owed, PlainCommand

IDLE = 0.01
"""Seconds after which a channel set is looked at before it is used: a server may have closed its connection."""


class ChannelSet:
    """A channel to each node."""

    def __init__(self, configs: Sequence[BlockingNodeConfig], called: Callable[[Any], None]) -> None:
        self._poll = select.poll()
        self._wait = self._poll.poll
        self._now, self._patience = configs[0].now, configs[0].patience
        self._by_fd: dict[int, BlockingChannel] = {}
        events = ChannelEvents(self._opened, self._closed, called)
        self.channels = [BlockingChannel(node, config, events) for node, config in enumerate(configs)]
        self._idle_since = 0.0
        self._unwanted: list[Asker] = []
        """Rounds whose grant was given back on other connections, while a node still owed an answer."""

    def wake(self) -> None:
        """Read what came while the set was not in use: late answers, and the end of connections."""
        if self._now() > self._idle_since + IDLE:
            self.listen(0.0)

    def rest(self) -> None:
        """Note that the set is not in use from now on."""
        self._idle_since = self._now()
        while self._unwanted:
            asker = self._unwanted.pop()
            for channel in self.channels:
                channel.take_back(asker)

    def unwanted(self, asker: Asker) -> None:
        """Let no open request of *asker* be granted any longer. Another thread calls this."""
        self._unwanted.append(asker)

    def ask_all(self, asker: Asker, call: NodeCall | PlainCommand, undo: NodeCall | None, *, behind: bool) -> None:
        """Send to every node; what `BlockingChannel.ask` does, without a call for each: this is the lock path."""
        owed, data = Owed(asker, call, undo, self._now()), call.data
        soon, size = owed.since - self._patience, len(data)
        for channel in self.channels:
            if channel.sock is None or (channel.owed and channel.owed[0].since < soon):
                channel.ask(owed, behind=behind)
                continue
            channel.owed.append(owed)
            try:
                if channel.send(data) == size:
                    continue
            except OSError:
                pass
            channel.drop(StoreUnavailable(channel.name, "the connection broke"))

    def listen(self, seconds: float) -> None:
        """Wait up to *seconds* until any node speaks, and hand on what it says."""
        for fd, _ in self._wait(seconds * 1000):
            channel = self._by_fd.get(fd)
            if channel is not None:  # if not, it was given up at this very moment
                channel.read()

    def owes(self, asker: Asker) -> bool:
        """Whether a node has not answered it yet."""
        return any(owed.to is asker for channel in self.channels for owed in channel.owed)

    def close(self) -> None:
        """Close our descriptors, and send nothing: the connections may be the parent's."""
        for channel in self.channels:
            channel.close()
        self._by_fd.clear()

    def _opened(self, channel: BlockingChannel) -> None:
        self._by_fd[channel.fd] = channel
        self._poll.register(channel.fd, select.POLLIN)

    def _closed(self, channel: BlockingChannel) -> None:
        self._by_fd.pop(channel.fd, None)
        with contextlib.suppress(OSError, ValueError, KeyError):
            self._poll.unregister(channel.fd)


class BlockingRound(Asker):
    """One round of questions, of one thread."""

    __slots__ = ("_channel_set", "_give", "_now")

    def __init__(
        self, channel_set: ChannelSet, now: Callable[[], float], give: Callable[[ChannelSet, BlockingRound, str], None]
    ) -> None:
        super().__init__()
        self._channel_set, self._now, self._give = channel_set, now, give

    def send(
        self, node: int, call: NodeCall | PlainCommand, *, undo: NodeCall | None = None, behind: bool = False
    ) -> None:
        """Write, and remember whose the answer will be."""
        self._channel_set.channels[node].ask(Owed(self, call, undo, self._now()), behind=behind)

    def send_all(self, call: NodeCall, *, undo: NodeCall | None = None, behind: bool = False) -> None:
        """Write to all."""
        self._channel_set.ask_all(self, call, undo, behind=behind)

    async def next(self, until: float) -> NodeAnswer | None:
        """The first answer, read by this thread."""
        return self.read(until)

    def read(self, until: float) -> NodeAnswer | None:
        """What `next` does, as a plain function. A process that stood still reads before it gives up."""
        answers, left = self.answers, 1.0
        while not answers and left > 0:
            left = until - self._now()
            self._channel_set.listen(max(0.0, left))
        return answers.popleft() if answers else None

    def end(self, *, keep: str = "") -> None:
        """Leave the channel set to the next round."""
        if not self.ended:
            self.ended = True
            self._give(self._channel_set, self, keep)
