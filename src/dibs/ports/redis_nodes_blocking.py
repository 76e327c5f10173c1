"""Asks several Redis servers from threads: each takes a bundle of connections for as long as its round takes.

Bundles wait on a stack, so one thread uses the same bundle again and again. One that gives back what it was granted
while a node still owed the answer finds the connections of that time, or tells whoever has them now to take it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from dibs.ports.redis_bundle import Bundle, Round
from dibs.ports.redis_dial import BlockingDialer
from dibs.ports.redis_nodes import LONGEST_CONNECT
from dibs.ports.redis_nodes_ear import Ear
from dibs.ports.redis_source import Source
from dibs.ports.redis_strand import Way

MOST_KEPT = 10_000
"""Grants of which a node owes the answer; older ones end there by their ttl."""


class BlockingNodes:
    """All nodes, as threads see them."""

    def __init__(
        self,
        sources: Sequence[Source],
        greeting: Callable[[], Sequence[bytes]],
        now: Callable[[], float],
        new_token: Callable[[], str],
        patience: float,
        connecting: float,
    ) -> None:
        self._now, self._new_token = now, new_token
        self.names = [str(source.addresses[0]) for source in sources]
        within = min(connecting, LONGEST_CONNECT)
        self._ways = [
            Way(name, source, BlockingDialer(source.login), greeting, now, patience, within)
            for name, source in zip(self.names, sources, strict=True)
        ]
        self._fresh()

    def _fresh(self) -> None:
        self._mutex = threading.Lock()
        self._closed = False
        self._all: list[Bundle] = []
        self._idle: list[Bundle] = []
        self._kept: dict[str, tuple[Bundle, Round]] = {}
        self._ears: dict[str, Ear] = {}
        self._idle_ears: list[Ear] = []

    def round(self, token: str = "") -> Round:
        """Begin a round."""
        bundle = self._taken(token)
        bundle.wake()
        return Round(bundle, self._now, self._give)

    def _taken(self, token: str) -> Bundle:
        with self._mutex:
            if token and token in self._kept:
                bundle, asked = self._kept.pop(token)
                if bundle in self._idle:
                    self._idle.remove(bundle)
                    return bundle
                bundle.unwanted(asked)
            if self._idle:
                return self._idle.pop()
        bundle = Bundle(self._ways, _ignore)
        self._all.append(bundle)
        return bundle

    def _give(self, bundle: Bundle, asked: Round, keep: str) -> None:
        keeps = bool(keep) and bundle.owes(asked)
        with self._mutex:  # so what is unwanted is heard of before the bundle rests, or finds it resting
            bundle.rest()
            if keeps:
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                self._kept[keep] = (bundle, asked)
            if not self._closed:
                self._idle.append(bundle)
                return
        bundle.close()

    # --- waiting -------------------------------------------------------------------------------------------

    async def expect(self, token: str, within: float) -> bytes:
        """Listen on strands of its own: who waits is a thread, and reads for itself."""
        ear = self._ears.get(token)
        if ear is None:
            with self._mutex:
                ear = self._idle_ears.pop() if self._idle_ears else None
            if ear is None:
                ear = Ear(self._ways, self._now, self._new_token())
                self._all.append(ear.bundle)
            self._ears[token] = ear
        ear.listen(self._now() + within)
        return ear.channel if ear.heard_by else b""

    async def wait(self, token: str, within: float) -> str:
        """Read until a node calls."""
        ear = self._ears.get(token)
        return ear.wait(token, self._now() + within) if ear is not None else ""

    def forget(self, token: str) -> None:
        """Keep its strands for another."""
        ear = self._ears.pop(token, None)
        if ear is not None:
            with self._mutex:
                self._idle_ears.append(ear)

    # --- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all that nobody uses; what is in use is closed after that use."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
            ears = [*self._ears.values(), *self._idle_ears]
        for bundle in [*idle, *(ear.bundle for ear in ears)]:
            bundle.close()

    def forked(self) -> None:
        """Close our descriptors of the parent's connections."""
        for bundle in self._all:
            bundle.close()
        self._fresh()


def _ignore(message: object) -> None:
    """Who does not listen hears nothing that it did not ask for."""
