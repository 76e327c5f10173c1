"""How async code gets a client; what it gets is the core itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, ParamSpec, TypeVar

from dibs.core.checks import Seconds, checked_options
from dibs.core.client import DEFAULT_TTL, Client
from dibs.core.connecting import connected
from dibs.core.lock import Lock
from dibs.core.locked import locked_async
from dibs.errors import Misuse
from dibs.runtime.asyncio import AsyncioRuntime, why_no_loop

P = ParamSpec("P")
R = TypeVar("R")

_default_clients: dict[asyncio.AbstractEventLoop, Client] = {}


def connect(url: str | object | None = None, *, namespace: str = "default") -> Client:
    """Return a client of the store at *url*: by default ``DIBS_URL``, else the embedded SQLite store of this user.

    Instead of a URL you may pass the client or connection pool of a driver that you already have, such as redis-py's.
    It returns at once; the first step connects. Locks of different namespaces have nothing to do with each other.
    Close it, or use it as a context manager.
    """
    return connected(url, namespace, AsyncioRuntime())


def _default_client() -> Client:
    """One client for each event loop, since a client lives in one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise Misuse(why_no_loop()) from None
    client = _default_clients.get(loop)
    if client is None:
        for closed in [known for known in list(_default_clients) if known.is_closed()]:
            _default_clients.pop(closed, None)  # its client can do nothing any more; what it had open is closed with it
        client = _default_clients[loop] = connect()
    return client


def lock(
    name: str,
    *,
    ttl: Seconds = DEFAULT_TTL,
    timeout: Seconds | None = None,
    note: str = "",
    max_hold: Seconds | None = None,
    on_lost: Literal["cancel", "flag"] = "cancel",
    shared: bool = False,
) -> Lock:
    """Describe a lock of the default client, as `Client.lock` does; the client lives as long as the event loop."""
    return _default_client().lock(
        name, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost, shared=shared
    )


def locked(
    name: str,
    *,
    ttl: Seconds = DEFAULT_TTL,
    timeout: Seconds | None = None,
    note: str = "",
    max_hold: Seconds | None = None,
    on_lost: Literal["cancel", "flag"] = "cancel",
    shared: bool = False,
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Decorate an async function with a lock of the default client, as `Client.locked` does."""
    checked_options(name, ttl, timeout, note, max_hold, on_lost)  # here, and not when there is a loop

    def make(made_name: str) -> Lock:
        return lock(made_name, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost, shared=shared)

    def decorate(func: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        return locked_async(make, name, func)

    return decorate
