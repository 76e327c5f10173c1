"""One session with an ensemble, on a kazoo client of our own, for blocking and async code.

kazoo reads and writes in a thread of its own, and hands over answers by calls from that thread; our code waits for them
with an event of the runtime. kazoo also keeps the session alive, finds another server when a connection breaks, and
begins a new session when one has ended.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from typing import Any

from kazoo.protocol.states import KazooState, KeeperState

from dibs.errors import StoreUnavailable
from dibs.runtime import Event, Runtime, lifetime
from dibs.stores.zookeeper.port.client import BoundedClient
from dibs.stores.zookeeper.port.requests import Replies, Request
from dibs.stores.zookeeper.port.source import ZooKeeperSource

LONGEST_DIAL = 2.0
"""Seconds for one server to accept a connection, and for its first answer."""

CLOSING = 1.0
"""Seconds that `close` waits for the end of the session; without an answer it ends when its timeout is over."""


class ZooKeeperSession:
    """One session, and after its end the next."""

    def __init__(self, source: ZooKeeperSource, timeout: float, runtime: Runtime, changed: Callable[[], None]) -> None:
        self.source, self.wanted, self._runtime, self._changed = source, timeout, runtime, changed
        self.ended: set[int] = set()
        """The ids of the sessions that have ended."""
        self._mutex = runtime.mutex()
        self._waiting: set[Event] = set()
        self._begun = self._starting = self._closed = False
        self._silence = min(LONGEST_DIAL, timeout / 4)
        self._client = self._new_client()

    @property
    def timeout(self) -> float:
        """Seconds that the ensemble waits for a heartbeat: it may have agreed to another time than we asked for."""
        return self._client.link.agreed

    @property
    def id(self) -> int:
        """The id of the session that is open, or was opened last; 0 if none was opened."""
        return int(self._client._session_id or 0)

    async def connected(self, until: float) -> None:
        """Wait until requests can be sent; `StoreUnavailable` when no server accepts us, or not in time."""
        if self._client.connected and not self._closed:
            return
        self._begin()
        event, failed = self._runtime.event(), self._client.dialing.failures
        self._waiting.add(event)
        try:
            while not self._client.connected:
                self._refuse_hopeless(failed)
                left = until - self._runtime.now()
                if left <= 0:
                    raise StoreUnavailable(self.source.shown, f"no server answered in time{self._turned_away}")
                await event.wait(left)
                event.clear()
        finally:
            self._waiting.discard(event)

    def send(self, *requests: Request) -> Replies:
        """Send all at once: they arrive in this order, or from some point on not at all."""
        replies = Replies(len(requests), self._runtime.event(), self.source.shown)
        for request in requests:
            self._client._call(request, replies)
        return replies

    async def answers(self, replies: Replies, until: float) -> list[Any]:
        """Wait for the answers. If the server is silent for long, kazoo goes to another one."""
        sent_at = time.monotonic()
        if not await replies.wait(until - self._runtime.now()) and self._is_silent_since(sent_at):
            self._client.link.drop()
        return replies.answers()

    async def ask(self, until: float, *requests: Request) -> list[Any]:
        """Send requests, and wait for their answers."""
        await self.connected(until)
        return await self.answers(self.send(*requests), until)

    def forget(self, path: str, watcher: Callable[[Any], None]) -> None:
        """Do not call *watcher* again when *path* or its children change."""
        for watchers in (self._client._data_watchers.get(path), self._client._child_watchers.get(path)):
            if watchers:
                watchers.discard(watcher)

    async def close(self) -> None:
        """End the session, and with it all its nodes."""
        until = self._runtime.now() + CLOSING
        self.abandon()
        while self._begun and not self._client.link.over.is_set():
            if self._runtime.now() >= until:
                self._client.link.drop()
                return
            await self._runtime.sleep(0.001)

    def abandon(self) -> None:
        """Ask the ensemble to end the session, and do not wait."""
        self._closed = True
        if self._begun:
            self._client.ask_to_end()

    def forked(self) -> None:
        """Touch nothing in a forked child: the session and its threads are the parent's."""

    # ---------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        with self._mutex:
            if self._closed:
                raise StoreUnavailable(self.source.shown, "this client is closed")
            if not self._begun or self._client.client_state == KeeperState.AUTH_FAILED:
                self._start()
                self._begun = True
                # What kazoo does at the end of the interpreter it would do in a forked child too, and wait there for
                # threads that only the parent has.
                atexit.unregister(self._client.handler.stop)
                lifetime.at_exit(self._end_threads)

    def _start(self) -> None:
        """Let kazoo begin, or take a new client for the next try: it cannot begin again from halfway."""
        if self._starting:  # by this thread, as we have the mutex; kazoo would wait for itself
            raise StoreUnavailable(self.source.shown, "a signal handler cannot use it while its thread is connecting")
        try:
            self._starting = True
            self._client.start_async()
        except BaseException as exc:
            self._client.discard()
            self._client = self._new_client()
            if isinstance(exc, OSError | RuntimeError):  # no file, or no thread, is left
                raise StoreUnavailable(self.source.shown, f"no connection can be opened: {exc}") from exc
            raise
        finally:
            self._starting = False

    def _new_client(self) -> BoundedClient:
        client = BoundedClient(self.source, self.wanted, self._silence, self._tell)
        client.add_listener(self._heard)
        return client

    def _end_threads(self) -> None:
        self._client.handler.stop()

    def _refuse_hopeless(self, failed: int) -> None:
        """Each server, by each of its addresses, has refused us since we began to wait."""
        dialing = self._client.dialing
        if dialing.failures - failed >= 2 * len(self.source.hosts):
            raise StoreUnavailable(self.source.shown, f"no server can be reached: {dialing.problem}{self._turned_away}")
        if self._client.client_state == KeeperState.AUTH_FAILED:
            raise StoreUnavailable(self.source.shown, "the ensemble refuses our login")

    @property
    def _turned_away(self) -> str:
        """The likely cause if servers accept our connections and close them at once; empty if they do not."""
        count = self._client.dialing.accepted
        if count <= len(self.source.hosts):
            return ""
        return (
            f"; {count} connections were accepted and closed at once: the servers may have reached their "
            "maxClientCnxns for this machine, or have lost their quorum"
        )

    def _is_silent_since(self, sent_at: float) -> bool:
        return time.monotonic() - max(sent_at, self._client.link.heard_at) >= self._silence

    def _heard(self, state: str) -> None:
        """Note the new *state* of the connection. kazoo calls this in its thread."""
        if state == KazooState.LOST and not self._closed:
            self.ended.add(self._client._session_id)
            self._changed()
        self._tell()

    def _tell(self) -> None:
        for event in list(self._waiting):
            event.set()
