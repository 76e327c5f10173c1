"""The one subscription that a client has at a server, for threads: whoever waits reads it for all who wait.

No thread is started. The first who waits reads the socket and tells the others; when it leaves, it hands the reading
on. So a waiter is woken by the kernel, without a detour over a listener, and nothing is left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import hiredis

from dibs.errors import StoreUnavailable
from dibs.ports.redis_blocking import CHUNK, NOT_YET, BlockingServer, Wire
from dibs.ports.redis_command import command
from dibs.ports.redis_errors import refused
from dibs.ports.redis_hints import Hint, Hints

QUIET = 5.0
"""Seconds without a sound after which we ask the server to say something; after as much again the line is dead."""


class BlockingEar:
    """One connection that listens."""

    def __init__(self, server: BlockingServer, hints: Hints, now: Callable[[], float]) -> None:
        self._server, self.hints, self._now = server, hints, now
        self._wire: Wire | None = None
        self._reading, self._sending = threading.Lock(), threading.Lock()
        self._here: dict[int, Hint] = {}  # who is in `wait` just now: one of them reads
        self._heard_at = self._pinged_at = 0.0

    async def subscribe(self, channel: bytes, within: float) -> None:
        """Return when messages on *channel* are sure to come from now on; raise `StoreUnavailable` if they will not."""
        if channel in self.hints.confirmed:
            return
        until = self._now() + within
        hint = self._send(channel, until)
        await self.wait(hint, until - self._now())
        if isinstance(hint.problem, hiredis.ReplyError):
            raise refused(self._server.name, hint.problem)
        if channel not in self.hints.confirmed:
            raise StoreUnavailable(self._server.name, f"no subscription: {hint.problem or 'no answer in time'}")

    async def wait(self, hint: Hint, within: float) -> None:
        """Return when *hint* says that it is worth asking, or after *within* seconds."""
        until, me = self._now() + within, id(hint)
        self._check_pulse()
        self._here[me] = hint
        try:
            while True:  # its condition is not here because of tests/test_loops.py
                if self._now() >= min(until, hint.ask_at):
                    break
                hint.event.clear()
                if not self._reading.acquire(blocking=False):
                    await hint.event.wait(max(0.0, min(until, hint.ask_at) - self._now()))
                    continue
                try:
                    self._read(hint, until)
                finally:
                    self._reading.release()
        finally:
            del self._here[me]
            self._hand_on()

    def let_go(self, channel: bytes) -> None:
        """Nobody waits on *channel* any more."""
        self._tell(command("SUNSUBSCRIBE", channel))

    async def close(self) -> None:
        """Close the connection."""
        self._break(ConnectionAbortedError("this client was closed"))

    def forked(self) -> None:
        """Forget the parent's connection."""
        if self._wire is not None:
            self._wire.close()

    def _send(self, channel: bytes, until: float) -> Hint:
        if not self._sending.acquire(timeout=max(0.0, until - self._now())):
            raise StoreUnavailable(self._server.name, "another thread is still opening the subscription")
        try:
            if self._wire is None:
                self._wire, self._heard_at, self._pinged_at = self._server.connect(until), self._now(), 0.0
            hint, data = self.hints.subscribing(channel)
            self._wire.send(data)
        except OSError as exc:
            self._break(exc)
            raise StoreUnavailable(self._server.name, f"the subscription broke: {exc}") from exc
        finally:
            self._sending.release()
        return hint

    def _tell(self, data: bytes) -> None:
        with self._sending:
            try:
                if self._wire is not None:
                    self._wire.send(data)
            except OSError as exc:
                self._break(exc)

    def _read(self, hint: Hint, until: float) -> None:
        """Read for all until *hint* is worth asking again."""
        wire = self._wire
        try:
            while wire is not None and wire is self._wire and (left := min(until, hint.ask_at) - self._now()) > 0:
                self._take(wire, left)
            if wire is None:  # nothing to read: whoever waits asks by its own clock
                hint.now()
        except (OSError, hiredis.ProtocolError) as exc:
            self._break(exc)
        except BaseException as exc:  # Ctrl-C: something may have been read and not yet heard
            self._break(RuntimeError(f"reading was interrupted by {type(exc).__name__}"))
            raise
        finally:
            if wire is not None and wire is not self._wire:
                wire.close()

    def _take(self, wire: Wire, within: float) -> None:
        try:
            wire.more(within)
            piece = wire.receive(CHUNK)
        except (TimeoutError, BlockingIOError):
            return
        if not piece:
            raise ConnectionResetError("the server closed the connection")
        self._heard_at, self._pinged_at = self._now(), 0.0
        wire.feed(piece)
        while (reply := wire.next()) is not NOT_YET:
            self.hints.message(reply)

    def _hand_on(self) -> None:
        for other in list(self._here.values()):
            other.event.set()
            return

    def _check_pulse(self) -> None:
        now = self._now()
        if self._wire is None or now < self._heard_at + QUIET:
            return
        if not self._pinged_at:
            self._pinged_at = now
            self._tell(command("PING"))
        elif now > self._pinged_at + QUIET:
            self._break(TimeoutError("the subscription is silent"))

    def _break(self, problem: Exception) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.hang_up()  # ends the receive of whoever reads, and that one closes it: a closed number is reused
            if self._reading.acquire(blocking=False):
                self._reading.release()
                wire.close()
        self.hints.broke(problem)
