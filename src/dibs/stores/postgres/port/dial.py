"""Opens a connection within a budget, in the caller's thread or, for an event loop, in a worker."""

from __future__ import annotations

import select
from collections.abc import Callable

from dibs.runtime import Driver, Runtime
from dibs.stores.postgres.port.driver import PGconn, check_libpq, pq
from dibs.stores.postgres.port.errors import no_connection
from dibs.stores.postgres.port.source import Source


async def dial(source: Source, runtime: Runtime, until: float) -> PGconn:
    """Return a new connection, or raise `StoreUnavailable`, before *until*."""
    if runtime.driver is Driver.BLOCKING:
        return connect(source, runtime.now, until)
    import asyncio  # noqa: PLC0415 - blocking code does not need it

    # libpq looks up the name of the host in a blocking call, and TLS computes. Whoever is cancelled meanwhile leaves
    # the connection to nobody, and it is closed.
    try:
        return await asyncio.to_thread(connect, source, runtime.now, until)
    except (OSError, RuntimeError) as exc:  # no file or no thread is left, not even for the worker
        raise no_connection(source.shown, str(exc)) from exc


def connect(source: Source, now: Callable[[], float], until: float) -> PGconn:
    """Try each server in turn; each may use its share of the time that is left."""
    check_libpq(source.shown)
    said = "there was no time left to connect"
    for index, conninfo in enumerate(source.attempts):
        share = (until - now()) / (len(source.attempts) - index)
        if share <= 0:
            break
        connection = pq.PGconn.connect_start(conninfo.encode())
        problem = _establish(connection, now, now() + share)
        if problem is None:
            connection.nonblocking = 1
            return connection
        connection.finish()
        said = problem
    raise no_connection(source.shown, said)


def _establish(connection: PGconn, now: Callable[[], float], until: float) -> str | None:
    """Drive the handshake to its end; tell what went wrong."""
    state: int = pq.PollingStatus.WRITING
    while connection.status != pq.ConnStatus.BAD:
        if state == pq.PollingStatus.OK:
            return None
        if state == pq.PollingStatus.FAILED:
            break
        poll = select.poll()
        poll.register(connection.socket, select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT)
        if not poll.poll(max(0.0, until - now()) * 1000):
            return "no answer in time"
        state = connection.connect_poll()
    return connection.get_error_message() or "the connection broke"
