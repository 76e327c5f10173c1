"""The one subscription that a client has at a server, for threads: one waiter reads it for all waiters.

No thread is started. The first waiter reads the socket and tells the others; when it leaves, it hands the reading
on. So a waiter is woken by the kernel, without a detour over a listener, and nothing is left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import hiredis

from dibs.errors import StoreUnavailable
from dibs.stores.redis.port.command import command
from dibs.stores.redis.port.errors import refused
from dibs.stores.redis.port.hints import Hints, WakeHint
from dibs.stores.redis.port.parser import CHUNK, NOT_YET
from dibs.stores.redis.port.server_blocking import BlockingRedisConnection, BlockingServer

QUIET = 5.0
"""Seconds without a sound after which we ask the server to say something; as long again, and it is dead."""


class BlockingSubscriber:
    """The connection of one client to one server on which its waiters are called."""

    def __init__(self, server: BlockingServer, hints: Hints, now: Callable[[], float]) -> None:
        self._server, self.hints, self._now = server, hints, now
        self._connection: BlockingRedisConnection | None = None
        self._reading, self._sending = threading.Lock(), threading.RLock()
        self._in_use = False  # by the thread that has `_sending`, whose signal handlers get that as well
        self._here: dict[int, WakeHint] = {}  # the threads in `wait` just now: one of them reads
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

    async def wait(self, hint: WakeHint, within: float) -> None:
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
        """Unsubscribe from *channel*, which its last waiter has left."""
        self._tell(command("SUNSUBSCRIBE", channel))

    async def close(self) -> None:
        """Close the connection."""
        self._break(ConnectionAbortedError("this client was closed"))

    def forked(self) -> None:
        """Forget the parent's connection."""
        if self._connection is not None:
            self._connection.close()

    def _send(self, channel: bytes, until: float) -> WakeHint:
        if not self._sending.acquire(timeout=max(0.0, until - self._now())):
            raise StoreUnavailable(self._server.name, "another thread is still opening the subscription")
        try:
            if self._in_use:
                raise StoreUnavailable(
                    self._server.name, "a signal handler cannot subscribe while its thread is subscribing"
                )
            self._in_use = True
        except BaseException:
            self._sending.release()
            raise
        try:
            if self._connection is None:
                self._connection, self._heard_at, self._pinged_at = self._server.connect(until), self._now(), 0.0
            hint, data = self.hints.subscribing(channel)
            self._connection.send(data)
        except OSError as exc:
            self._break(exc)
            raise StoreUnavailable(self._server.name, f"the subscription broke: {exc}") from exc
        finally:
            self._in_use = False
            self._sending.release()
        return hint

    def _tell(self, data: bytes) -> None:
        """Send an optional command; a signal handler that interrupted its thread while sending leaves it out."""
        with self._sending:
            if self._in_use:
                return
            try:
                self._in_use = True
                if self._connection is not None:
                    self._connection.send(data)
            except OSError as exc:
                self._break(exc)
            finally:
                self._in_use = False

    def _read(self, hint: WakeHint, until: float) -> None:
        """Read messages for all waiters until *hint* is worth asking again."""
        connection = self._connection
        try:
            while (
                connection is not None
                and connection is self._connection
                and (left := min(until, hint.ask_at) - self._now()) > 0
            ):
                self._take(connection, left)
            if connection is None:  # nothing to read: the waiter asks by its own clock
                hint.now()
        except (OSError, hiredis.ProtocolError) as exc:
            self._break(exc)
        except BaseException as exc:  # Ctrl-C: something may have been read and not yet heard
            self._break(RuntimeError(f"reading was interrupted by {type(exc).__name__}"))
            raise
        finally:
            if connection is not None and connection is not self._connection:
                connection.close()

    def _take(self, connection: BlockingRedisConnection, within: float) -> None:
        try:
            connection.more(within)
            piece = connection.receive(CHUNK)
        except (TimeoutError, BlockingIOError):
            return
        if not piece:
            raise ConnectionResetError("the server closed the connection")
        self._heard_at, self._pinged_at = self._now(), 0.0
        connection.feed(piece)
        while (reply := connection.next()) is not NOT_YET:
            self.hints.message(reply)

    def _hand_on(self) -> None:
        for other in list(self._here.values()):
            other.event.set()
            return

    def _check_pulse(self) -> None:
        now = self._now()
        if self._connection is None or now < self._heard_at + QUIET:
            return
        if not self._pinged_at:
            self._pinged_at = now
            self._tell(command("PING"))
        elif now > self._pinged_at + QUIET:
            self._break(TimeoutError("the subscription is silent"))

    def _break(self, problem: Exception) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.hang_up()  # ends the receive of the reader, which then closes it: a closed number is reused
            if self._reading.acquire(blocking=False):
                self._reading.release()
                connection.close()
        self.hints.broke(problem)
