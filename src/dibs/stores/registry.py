"""Finds the store for a URL: built-in schemes by table, third-party ones by entry point."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import cast

from dibs.errors import Misuse, NotSupported
from dibs.runtime import Runtime
from dibs.stores.store import Store

Opener = Callable[[str, str, Runtime], Store]
"""Makes a store for a URL, a namespace and a runtime. It does no I/O: the first step does."""

BUILT_IN = {
    "memory": "dibs.stores.memory.store",
    "sqlite": "dibs.stores.sqlite.store",
    "redis": "dibs.stores.redis.store",
    "rediss": "dibs.stores.redis.store",
    "unix": "dibs.stores.redis.store",
    "valkey": "dibs.stores.redis.store",
    "valkeys": "dibs.stores.redis.store",
    "redis+sentinel": "dibs.stores.redis.store",
    "rediss+sentinel": "dibs.stores.redis.store",
    "redis+cluster": "dibs.stores.redis.store",
    "rediss+cluster": "dibs.stores.redis.store",
    "redlock": "dibs.stores.redlock.store",
    "rediss+redlock": "dibs.stores.redlock.store",
    "postgresql": "dibs.stores.postgres.rows.store",
    "postgres": "dibs.stores.postgres.rows.store",
    "postgresql+advisory": "dibs.stores.postgres.advisory.store",
    "zookeeper": "dibs.stores.zookeeper.store",
    "zookeepers": "dibs.stores.zookeeper.store",
    "etcd": "dibs.stores.etcd.store",
    "etcds": "dibs.stores.etcd.store",
    "consul": "dibs.stores.consul.store",
    "consuls": "dibs.stores.consul.store",
}
"""URL scheme to the module whose `open_url` serves it; imported when it is first used."""

DRIVERS = {
    "redis": "dibs.stores.redis.store",
    "psycopg": "dibs.stores.postgres.rows.store",
    "psycopg_pool": "dibs.stores.postgres.rows.store",
    "sqlalchemy": "dibs.stores.postgres.rows.store",
    "kazoo": "dibs.stores.zookeeper.store",
}
"""Package to the module whose `open_client` takes a client of it."""


def open_store(url: str, namespace: str, runtime: Runtime) -> Store:
    """Make the store that *url* names, with names of its own in *namespace*."""
    scheme = url.partition(":")[0].lower()
    opener = _built_in(scheme) if scheme in BUILT_IN else _third_party(scheme)
    return opener(url, namespace, runtime)


def open_client(client: object, namespace: str, runtime: Runtime) -> Store:
    """Make the store behind *client*, a client or pool of a driver that the caller already has; a list is a Redlock."""
    if isinstance(client, list | tuple):
        return cast(Store, importlib.import_module("dibs.stores.redlock.store").open_nodes(client, namespace, runtime))
    for kind in type(client).__mro__:
        module = DRIVERS.get(kind.__module__.partition(".")[0])
        if module is not None:
            return cast(Store, _imported(module).open_client(client, namespace, runtime))
    raise Misuse(
        "a store is named by a URL such as sqlite: or memory:, or by a client of its driver, not by an object of the "
        f"type {type(client).__name__}"
    )


def _built_in(scheme: str) -> Opener:
    return cast(Opener, _imported(BUILT_IN[scheme]).open_url)


def _imported(module: str) -> ModuleType:
    """Import a store; where its driver is missing, its port has said which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        if (exc.name or "").startswith("dibs."):
            raise  # a fault of ours, and nothing to install
        raise NotSupported(str(exc)) from exc


def _third_party(scheme: str) -> Opener:
    from difflib import get_close_matches  # noqa: PLC0415 - as slow
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, rarely needed

    for entry in entry_points(group="dibs.stores", name=scheme):
        return cast(Opener, entry.load())
    if not re.fullmatch(r"[a-z][a-z0-9+.-]{0,30}", scheme):  # a part of a password, perhaps: it is not repeated
        raise Misuse(f"no store is known for the URL scheme; known schemes: {_known()}")
    near = get_close_matches(scheme, BUILT_IN, 1)
    advice = f", did you mean {near[0]}:?" if near else ""
    raise Misuse(f"no store is known for the URL scheme {scheme!r}{advice}; known schemes: {_known()}")


def _known() -> str:
    return ", ".join(f"{scheme}:" for scheme in BUILT_IN)
