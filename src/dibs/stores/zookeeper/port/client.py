"""A kazoo client whose every try is bounded: a silent server costs the time of one try, not that of a session."""

from __future__ import annotations

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
from kazoo.retry import KazooRetry

from dibs.stores.zookeeper.port.source import ZooKeeperSource

_log = logging.getLogger("dibs.zookeeper")  # what kazoo says of each broken connection, for users who switch it on
_log.addHandler(logging.NullHandler())


class BoundedClient(KazooClient):  # type: ignore[misc]
    """A kazoo client with a connection, and with threads, of our own kind."""

    def __init__(self, source: ZooKeeperSource, timeout: float, longest: float, tell: Callable[[], None]) -> None:
        self.dialing, self.ending = BoundedThreads(longest, tell), False
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
        self.link = self._connection = BoundedLink(self, longest, options.get("sasl_options"))

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


class BoundedLink(ConnectionHandler):  # type: ignore[misc]
    """A connection that remembers what the server agreed to, and does not wait for one that does not answer."""

    agreed = 0.0
    heard_at = 0.0
    """When the server last said anything, by the monotonic clock."""

    def __init__(self, client: BoundedClient, longest: float, sasl_options: Any) -> None:
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


class BoundedThreads(SequentialThreadingHandler):  # type: ignore[misc]
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
