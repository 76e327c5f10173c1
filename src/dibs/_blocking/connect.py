"""How blocking code gets a client, and the locks of the one that is there by default."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

from dibs._blocking.client import Client
from dibs._blocking.lock import Lock
from dibs.core.checks import Seconds
from dibs.core.client import DEFAULT_TTL
from dibs.core.connecting import connected
from dibs.runtime.threads import ThreadRuntime

P = ParamSpec("P")
R = TypeVar("R")


def connect(url: str | object | None = None, *, namespace: str = "default") -> Client:
    """Return a client of the store at *url*: by default ``DIBS_URL``, else the embedded SQLite store of this user.

    Instead of a URL you may pass the client or connection pool of a driver that you already have, such as redis-py's.
    It returns at once; the first step connects. Locks of different namespaces have nothing to do with each other.
    Close it, or use it as a context manager.
    """
    return Client(connected(url, namespace, ThreadRuntime()))


@functools.cache
def _default_client() -> Client:
    return connect()


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
    """Describe a lock of the default client, as `Client.lock` does; the client lives as long as the process."""
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
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function with a lock of the default client, as `Client.locked` does."""
    return _default_client().locked(
        name, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost, shared=shared
    )
