"""Asks several Redis servers from threads: each takes a set of channels for as long as its round takes.

Sets wait on a stack, so one thread uses the same one again and again. A thread that gives back what it was granted
while a node still owed the answer finds the channels of that time, or tells the thread that has them to take it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from dibs.stores.redis.port.dial import BlockingDialer
from dibs.stores.redis.port.source import RedisSource
from dibs.stores.redlock.port.channel_blocking import BlockingNodeConfig
from dibs.stores.redlock.port.nodes import LONGEST_CONNECT
from dibs.stores.redlock.port.round_blocking import BlockingRound, ChannelSet
from dibs.stores.redlock.port.subscriber_blocking import NodesSubscriber

MOST_KEPT = 10_000
"""Grants of which a node owes the answer; older ones end there by their ttl."""


class BlockingNodes:
    """The connections to all nodes, for threads."""

    def __init__(
        self,
        sources: Sequence[RedisSource],
        greeting: Callable[[], Sequence[bytes]],
        now: Callable[[], float],
        new_token: Callable[[], str],
        patience: float,
        connecting: float,
    ) -> None:
        self._now, self._new_token = now, new_token
        self.names = [str(source.addresses[0]) for source in sources]
        within = min(connecting, LONGEST_CONNECT)
        self._configs = [
            BlockingNodeConfig(name, source, BlockingDialer(source.login), greeting, now, patience, within)
            for name, source in zip(self.names, sources, strict=True)
        ]
        self._fresh()

    def _fresh(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may come here in the middle of its thread's own round
        self._closed = False
        self._all: list[ChannelSet] = []
        self._idle: list[ChannelSet] = []
        self._kept: dict[str, tuple[ChannelSet, BlockingRound]] = {}
        self._subscribers: dict[str, NodesSubscriber] = {}
        self._idle_subscribers: list[NodesSubscriber] = []

    def round(self, token: str = "") -> BlockingRound:
        """Begin a round."""
        channel_set = self._taken(token)
        channel_set.wake()
        return BlockingRound(channel_set, self._now, self._give)

    def _taken(self, token: str) -> ChannelSet:
        with self._mutex:
            if token and token in self._kept:
                channel_set, asked = self._kept.pop(token)
                try:
                    self._idle.remove(channel_set)
                except ValueError:
                    channel_set.unwanted(asked)
                else:
                    return channel_set
            with suppress(IndexError):  # one step: a handler that came between a look and this would have taken it
                return self._idle.pop()
        channel_set = ChannelSet(self._configs, _ignore)
        self._all.append(channel_set)
        return channel_set

    def _give(self, channel_set: ChannelSet, asked: BlockingRound, keep: str) -> None:
        keeps = bool(keep) and channel_set.owes(asked)
        with self._mutex:  # so what is unwanted is heard of before the set rests, or finds it resting
            channel_set.rest()
            if keeps:
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                self._kept[keep] = (channel_set, asked)
            if not self._closed:
                self._idle.append(channel_set)
                return
        channel_set.close()

    # --- waiting -------------------------------------------------------------------------------------------

    async def expect(self, token: str, within: float) -> bytes:
        """Listen on channels of its own: each waiter is a thread, and reads for itself."""
        subscriber = self._subscribers.get(token)
        if subscriber is None:
            with self._mutex, suppress(IndexError):
                subscriber = self._idle_subscribers.pop()
            if subscriber is None:
                subscriber = NodesSubscriber(self._configs, self._now, self._new_token())
                self._all.append(subscriber.channel_set)
            self._subscribers[token] = subscriber
        subscriber.listen(self._now() + within)
        return subscriber.wake_channel if subscriber.heard_by else b""

    async def wait(self, token: str, within: float) -> str:
        """Read until a node calls."""
        subscriber = self._subscribers.get(token)
        return subscriber.wait(token, self._now() + within) if subscriber is not None else ""

    def forget(self, token: str) -> None:
        """Keep its channels for another waiter."""
        subscriber = self._subscribers.pop(token, None)
        if subscriber is not None:
            with self._mutex:
                self._idle_subscribers.append(subscriber)

    # --- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections that are not in use; the others are closed after their use."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
            subscribers = [*self._subscribers.values(), *self._idle_subscribers]
        for channel_set in [*idle, *(subscriber.channel_set for subscriber in subscribers)]:
            channel_set.close()

    def forked(self) -> None:
        """Close our descriptors of the parent's connections."""
        for channel_set in self._all:
            channel_set.close()
        self._fresh()


def _ignore(message: object) -> None:
    """For channels without a subscription, which get no messages."""
