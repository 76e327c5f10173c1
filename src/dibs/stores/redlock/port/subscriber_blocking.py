"""Listens to several Redis servers for one waiting thread, on connections of its own: whichever of them calls first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dibs.stores.redlock.port.channel_blocking import BlockingNodeConfig
from dibs.stores.redlock.port.nodes import PlainCommand
from dibs.stores.redlock.port.round_blocking import BlockingRound, ChannelSet


class NodesSubscriber:
    """A channel to each node, all subscribed to one wake channel."""

    def __init__(self, configs: Sequence[BlockingNodeConfig], now: Callable[[], float], name: str) -> None:
        self._now, self.channel_set = now, ChannelSet(configs, self._called)
        self.wake_channel = b"dibs:wake:%b" % name.encode()
        self._messages = deque[bytes]()
        self._subscribe = PlainCommand("SUBSCRIBE", self.wake_channel)
        self._subscribed: list[object] = [None] * len(configs)
        """The connections that listen."""
        self._counted_on = 0
        """How many nodes could call us when we last looked."""

    @property
    def heard_by(self) -> int:
        """How many nodes can call us."""
        return sum(
            on is not None and on is channel.sock
            for on, channel in zip(self._subscribed, self.channel_set.channels, strict=True)
        )

    def listen(self, until: float) -> None:
        """Subscribe where we are not; return when most nodes have said that they will call."""
        channels = self.channel_set.channels
        asking = BlockingRound(self.channel_set, self._now, _keep)
        missing = [
            channel
            for channel in channels
            if channel.sock is None or self._subscribed[channel.node] is not channel.sock
        ]
        for channel in missing:
            asking.send(channel.node, self._subscribe)
        for _ in missing:
            if 2 * self.heard_by > len(channels) or (answer := asking.read(until)) is None:
                break
            if isinstance(answer.reply, list):
                self._subscribed[answer.node] = channels[answer.node].sock
        self._counted_on = self.heard_by

    def wait(self, token: str, until: float) -> str:
        """Read until *token* is called, ``now`` or ``soon``, or until a connection ends: a call may be lost then."""
        while True:
            while self._messages:
                word, _, called = self._messages.popleft().partition(b" ")
                if called.decode() == token:
                    return str(word.decode())
            left = until - self._now()
            if left <= 0 or self.heard_by < self._counted_on:
                return ""
            self.channel_set.listen(left)

    def _called(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[0] == b"message":
            self._messages.append(reply[2])


def _keep(channel_set: ChannelSet, asking: BlockingRound, token: str) -> None:
    """The channels of a subscriber are always its own, so there is nothing to give back."""
