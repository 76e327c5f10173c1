"""Listens to several Redis servers for one waiting thread, on connections of its own: whichever of them calls first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dibs.ports.redis_bundle import Bundle, Round
from dibs.ports.redis_nodes import Plain
from dibs.ports.redis_strand import Way


class Ear:
    """Strands that listen on one channel."""

    def __init__(self, ways: Sequence[Way], now: Callable[[], float], name: str) -> None:
        self._now, self.bundle = now, Bundle(ways, self._called)
        self.channel = b"dibs:wake:%b" % name.encode()
        self._messages = deque[bytes]()
        self._subscribe = Plain("SUBSCRIBE", self.channel)
        self._on: list[object] = [None] * len(ways)
        """The connections that listen."""

    @property
    def heard_by(self) -> int:
        """How many nodes can call us."""
        return sum(
            on is not None and on is strand.sock for on, strand in zip(self._on, self.bundle.strands, strict=True)
        )

    def listen(self, until: float) -> None:
        """Subscribe where we are not; return when most nodes have said that they will call."""
        strands = self.bundle.strands
        asking = Round(self.bundle, self._now, _keep)
        missing = [strand for strand in strands if strand.sock is None or self._on[strand.node] is not strand.sock]
        for strand in missing:
            asking.send(strand.node, self._subscribe)
        for _ in missing:
            if 2 * self.heard_by > len(strands) or (answer := asking.read(until)) is None:
                break
            if isinstance(answer.reply, list):
                self._on[answer.node] = strands[answer.node].sock

    def wait(self, token: str, until: float) -> str:
        """Read until *token* is called: ``now`` or ``soon``."""
        while True:
            while self._messages:
                word, _, called = self._messages.popleft().partition(b" ")
                if called.decode() == token:
                    return str(word.decode())
            left = until - self._now()
            if left <= 0:
                return ""
            self.bundle.listen(left)

    def _called(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[0] == b"message":
            self._messages.append(reply[2])


def _keep(bundle: Bundle, asking: Round, token: str) -> None:
    """An ear's bundle is always its own."""
