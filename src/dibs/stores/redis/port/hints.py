"""What the messages of a subscription mean for the waiters: "now TOKEN" and "soon TOKEN". It knows no socket.

A hint never grants: it says that it is worth asking again. A message for a token that nobody here waits for is
dropped; its ticket ends at the server by itself.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from dibs.runtime import Event, Runtime
from dibs.stores.redis.port.command import command

STAND_IN = 0.105
"""Seconds after which the second waiter looks whether the first took the lock: its reservation is over by then."""


class WakeHint:
    """A waiter, and when it is worth asking again."""

    __slots__ = ("ask_at", "channel", "event", "problem")

    def __init__(self, event: Event, channel: bytes) -> None:
        self.event, self.channel = event, channel
        self.ask_at = math.inf
        self.problem: Exception | None = None

    def now(self) -> None:
        """Note that it is worth asking now."""
        self.ask_at = -math.inf
        self.event.set()

    def soon(self, at: float) -> None:
        """Note the moment at which it will be worth asking."""
        self.ask_at = min(self.ask_at, at)
        self.event.set()


class Hints:
    """All waiters of one client, and what one connection is subscribed to for them."""

    def __init__(self, runtime: Runtime, *, sharded: bool) -> None:
        self.confirmed = set[bytes]()
        """The channels whose messages will come."""
        self._runtime, self._sharded = runtime, sharded
        self._waiting: dict[str, WakeHint] = {}
        self._asked = deque[WakeHint]()  # subscriptions whose answer is still to come, in their order

    def expect(self, token: str, channel: bytes) -> None:
        """Let messages for *token* count from now on."""
        hint = self._waiting.get(token)
        if hint is None:
            hint = self._waiting[token] = WakeHint(self._runtime.event(), channel)
        hint.ask_at = math.inf

    def get(self, token: str) -> WakeHint | None:
        """The waiter with *token*."""
        return self._waiting.get(token)

    def forget(self, token: str) -> bytes | None:
        """Forget *token*, which has stopped waiting; return its channel if no other waiter needs that."""
        hint = self._waiting.pop(token, None)
        if hint is None or not self._sharded or any(hint.channel == h.channel for h in list(self._waiting.values())):
            return None
        self.confirmed.discard(hint.channel)
        return hint.channel

    def subscribing(self, channel: bytes) -> tuple[WakeHint, bytes]:
        """The command that subscribes to *channel*, and the hint that tells when it is answered."""
        hint = WakeHint(self._runtime.event(), channel)
        self._asked.append(hint)
        return hint, command("SSUBSCRIBE" if self._sharded else "SUBSCRIBE", channel)

    def message(self, reply: Any) -> None:
        """Take note of one message of the server."""
        if isinstance(reply, Exception):
            self._answered(reply)
            return
        kind, channel = reply[0], reply[1]
        if kind in {b"message", b"smessage"}:
            self._heard(reply[2])
        elif kind in {b"subscribe", b"ssubscribe"}:
            self.confirmed.add(channel)
            self._answered(None)
        elif kind == b"sunsubscribe" and channel in self.confirmed:
            self.confirmed.discard(channel)  # its slot has moved to another node
            self._gap({channel})

    def broke(self, problem: Exception) -> None:
        """Let all waiters ask again: the connection is gone, and messages may be lost."""
        lost, self.confirmed = self.confirmed, set()
        while self._asked:
            self._answered(problem)
        self._gap(lost)

    def _heard(self, payload: bytes) -> None:
        when, _, token = payload.decode("utf-8", "replace").partition(" ")
        hint = self._waiting.get(token)
        if hint is not None:
            hint.soon(self._runtime.now() + STAND_IN) if when == "soon" else hint.now()

    def _answered(self, problem: Exception | None) -> None:
        try:
            hint = self._asked.popleft()
        except IndexError:  # another thread found out at the same time that the connection broke
            return
        hint.problem = problem
        hint.now()

    def _gap(self, channels: set[bytes]) -> None:
        for hint in list(self._waiting.values()):
            if hint.channel in channels:
                hint.now()
