"""One session with an ensemble, on a kazoo client of our own, for both colours.

kazoo reads and writes in a thread of its own, and its answers come as calls from there; what waits for them waits for
an event of the runtime. It also keeps the session alive, finds another server when a connection breaks, and begins a
new session when one has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import CloseInstance, Connect
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from dibs.errors import StoreUnavailable
from dibs.ports.zookeeper_requests import Replies, Request
from dibs.ports.zookeeper_source import Source
from dibs.runtime import Event, Runtime

LONGEST_DIAL = 2.0
"""Seconds for one server to accept a connection, and for its first answer."""

CLOSING = 1.0
"""Seconds for the ensemble to end the session; else it ends by itself when its timeout is over."""

_log = logging.getLogger("dibs.zookeeper")
_log.addHandler(logging.NullHandler())  # what kazoo says of each broken connection is for those who ask for it


class Session:
    """One session, and after its end the next."""

    def __init__(self, source: Source, timeout: float, runtime: Runtime, changed: Callable[[], None]) -> None:
        self.source, self.wanted, self._runtime, self._changed = source, timeout, runtime, changed
        self.ended: set[int] = set()
        """The ids of those that are over."""
        self._mutex = runtime.mutex()
        self._waiting: set[Event] = set()
        self._begun = self._closed = False
        self._silence = min(LONGEST_DIAL, timeout / 4)
        self._client = _Client(source, timeout, self._silence, self._tell)
        self._client.add_listener(self._heard)

    @property
    def timeout(self) -> float:
        """Seconds that the ensemble waits for a sign of life: what it agreed to, which may not be what was wanted."""
        return self._client.link.agreed

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
                    raise StoreUnavailable(self.source.shown, "no server answered in time")
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
        """Wait for the answers. A server that is silent for long is left for another one."""
        sent_at = time.monotonic()
        if not await replies.wait(until - self._runtime.now()) and self._is_silent_since(sent_at):
            self._client.link.drop()
        return replies.answers()

    async def ask(self, until: float, *requests: Request) -> list[Any]:
        """Send requests, and wait for their answers."""
        await self.connected(until)
        return await self.answers(self.send(*requests), until)

    def forget(self, path: str, watcher: Callable[[Any], None]) -> None:
        """Do not call *watcher* when *path* or its children change: nobody waits for it any more."""
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
        """Touch nothing: session and threads are the parent's."""
        atexit.unregister(self._client.handler.stop)  # it would wait for threads that the child does not have

    # ---------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        with self._mutex:
            if self._closed:
                raise StoreUnavailable(self.source.shown, "this client is closed")
            if not self._begun or self._client.client_state == KeeperState.AUTH_FAILED:
                self._begun = True
                self._client.start_async()

    def _refuse_hopeless(self, failed: int) -> None:
        """Each server, by each of its addresses, has refused us since we began to wait."""
        dialing = self._client.dialing
        if dialing.failures - failed >= 2 * len(self.source.hosts):
            raise StoreUnavailable(self.source.shown, f"no server can be reached: {dialing.problem}")
        if self._client.client_state == KeeperState.AUTH_FAILED:
            raise StoreUnavailable(self.source.shown, "the ensemble refuses our login")

    def _is_silent_since(self, sent_at: float) -> bool:
        return time.monotonic() - max(sent_at, self._client.link.heard_at) >= self._silence

    def _heard(self, state: str) -> None:
        """Called by kazoo, in its thread."""
        if state == KazooState.LOST and not self._closed:
            self.ended.add(self._client._session_id)
            self._changed()
        self._tell()

    def _tell(self) -> None:
        for event in list(self._waiting):
            event.set()


class _Client(KazooClient):  # type: ignore[misc]
    """A client whose connection is `_Link`."""

    def __init__(self, source: Source, timeout: float, longest: float, tell: Callable[[], None]) -> None:
        self.dialing, self.ending = _Dialing(longest, tell), False
        options = dict(source.options)
        retry = KazooRetry(-1, delay=0.02, max_jitter=0.3, max_delay=0.5, sleep_func=self.dialing.sleep_func)
        super().__init__(
            ",".join(source.hosts),
            timeout,
            handler=self.dialing,
            auth_data=set(source.login),
            connection_retry=retry,
            logger=_log,
            **options,
        )
        self.link = self._connection = _Link(self, longest, options.get("sasl_options"))

    def ask_to_end(self) -> None:
        """What `stop` does, without waiting: the connection's thread does the rest."""
        self.ending = True
        self._stopped.set()
        self._queue.append((CloseInstance, None))
        with contextlib.suppress(OSError, AttributeError):
            self._connection._write_sock.send(b"\0")


class _Link(ConnectionHandler):  # type: ignore[misc]
    """A connection that remembers what the server agreed to, and does not wait for one that does not answer."""

    agreed = 0.0
    heard_at = 0.0
    """When the server last said anything, by the monotonic clock."""

    def __init__(self, client: _Client, longest: float, sasl_options: Any) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=_log, sasl_options=sasl_options)
        self._longest = longest
        self.over = self.handler.event_object()
        """Set when the session was ended on purpose, and its threads are done."""

    def zk_loop(self) -> None:
        """Keep the connection up until the client is to end; then leave nothing behind."""
        super().zk_loop()
        if self.client.ending:
            self.handler.stop()
            self.close()
            self.over.set()

    def drop(self) -> None:
        """Let the connection break: kazoo then looks for another server."""
        with contextlib.suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(min(timeout, self._longest), request, xid)
        if isinstance(request, Connect) and answer[0].time_out > 0:
            self.agreed = answer[0].time_out / 1000
        return answer

    def _read_socket(self, read_timeout: float) -> Any:
        self.heard_at = time.monotonic()
        return super()._read_socket(read_timeout)


class _Dialing(SequentialThreadingHandler):  # type: ignore[misc]
    """Threads for kazoo; a server that does not answer costs the time of one try, and not that of a session."""

    def __init__(self, longest: float, tell: Callable[[], None]) -> None:
        super().__init__()
        self._longest, self._told = longest, tell
        self.failures = 0
        self.problem = ""

    def create_connection(
        self,
        address: tuple[str, int],
        timeout: float | None = None,
        hostname: str | None = None,
        use_ssl: bool = False,
        **tls: Any,
    ) -> Any:
        """Connect to one server. kazoo's own way leaves sockets open when TLS fails."""
        try:
            connection = socket.create_connection(address, min(timeout or self._longest, self._longest))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _context(**tls).wrap_socket(connection, server_hostname=hostname) if use_ssl else connection
        except Exception as exc:
            self.failures, self.problem = self.failures + 1, str(exc)
            self._told()
            raise


def _context(
    *, ca: str | None, certfile: str | None, keyfile: str | None, keyfile_password: str | None, **checks: bool
) -> ssl.SSLContext:
    """How kazoo is told to speak TLS."""
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = checks["check_hostname"]
    context.verify_mode = ssl.CERT_REQUIRED if checks["verify_certs"] else ssl.CERT_NONE
    if certfile:
        context.load_cert_chain(certfile, keyfile, keyfile_password)
    return context
