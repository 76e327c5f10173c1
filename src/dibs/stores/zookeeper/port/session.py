"""One session with an ensemble, on a kazoo client of our own, for blocking and async code.

kazoo reads and writes in a thread of its own, and hands over answers by calls from that thread; our code waits for them
with an event of the runtime. kazoo also keeps the session alive, finds another server when a connection breaks, and
begins a new session when one has ended.
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
from dibs.runtime import Event, Runtime, lifetime
from dibs.stores.zookeeper.port.requests import Replies, Request
from dibs.stores.zookeeper.port.source import ZooKeeperSource

LONGEST_DIAL = 2.0
"""Seconds for one server to accept a connection, and for its first answer."""

CLOSING = 1.0
"""Seconds that `close` waits for the end of the session; without an answer it ends when its timeout is over."""

_log = logging.getLogger("dibs.zookeeper")
_log.addHandler(
    logging.NullHandler()
)  # kazoo's words about each broken connection, for users who switch this logger on


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

    def _new_client(self) -> _Client:
        client = _Client(self.source, self.wanted, self._silence, self._tell)
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


class _Client(KazooClient):  # type: ignore[misc]
    """A kazoo client whose connection is a `_Link`."""

    def __init__(self, source: ZooKeeperSource, timeout: float, longest: float, tell: Callable[[], None]) -> None:
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
        """Do what `stop` does, without waiting: the connection's thread does the rest."""
        self.ending = True
        self._stopped.set()
        self._queue.append((CloseInstance, None))
        with contextlib.suppress(OSError, AttributeError):
            self._connection._write_sock.send(b"\0")

    def discard(self) -> None:
        """Leave nothing of a start that failed halfway."""
        if self._connection._connection_routine is not None:
            self.ask_to_end()
            return
        self.handler._running = True  # some of its threads may be
        self.handler.stop()
        self._connection.close()


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
            self.client.dialing.accepted = 0
        return answer

    def _read_socket(self, read_timeout: float) -> Any:
        self.heard_at = time.monotonic()
        return super()._read_socket(read_timeout)


class _Dialing(SequentialThreadingHandler):  # type: ignore[misc]
    """Threads for kazoo; a server that does not answer costs the time of one try, and not that of a session."""

    def __init__(self, longest: float, tell: Callable[[], None]) -> None:
        super().__init__()
        self._longest, self._told = longest, tell
        self.failures = self.accepted = 0
        """Connections that were refused, and those that were accepted since the last that served."""
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
        connection = None
        try:
            connection = socket.create_connection(address, min(timeout or self._longest, self._longest))
            self.accepted += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _context(**tls).wrap_socket(connection, server_hostname=hostname) if use_ssl else connection
        except Exception as exc:
            if connection is not None:
                connection.close()
            self.failures, self.problem = self.failures + 1, str(exc)
            self._told()
            raise


def _context(
    *, ca: str | None, certfile: str | None, keyfile: str | None, keyfile_password: str | None, **checks: bool
) -> ssl.SSLContext:
    """The TLS context for the options that kazoo passes on."""
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = checks["check_hostname"]
    context.verify_mode = ssl.CERT_REQUIRED if checks["verify_certs"] else ssl.CERT_NONE
    if certfile:
        context.load_cert_chain(certfile, keyfile, keyfile_password)
    return context
