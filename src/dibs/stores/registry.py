"""Finds the store for a URL: built-in schemes by table, third-party ones by entry point."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import cast

from dibs.errors import Misuse, NotSupported
from dibs.runtime import Runtime
from dibs.stores.store import Store

Opener = Callable[[str, str, Runtime], Store]
"""Makes a store for a URL, a namespace and a runtime. It does no I/O: the first step does."""

BUILT_IN = {
    "memory": "dibs.stores.memory",
    "sqlite": "dibs.stores.sqlite",
    "redis": "dibs.stores.redis",
    "rediss": "dibs.stores.redis",
    "unix": "dibs.stores.redis",
    "valkey": "dibs.stores.redis",
    "valkeys": "dibs.stores.redis",
    "redis+sentinel": "dibs.stores.redis",
    "rediss+sentinel": "dibs.stores.redis",
    "redis+cluster": "dibs.stores.redis",
    "rediss+cluster": "dibs.stores.redis",
    "redlock": "dibs.stores.quorum",
    "rediss+redlock": "dibs.stores.quorum",
    "postgresql": "dibs.stores.postgres",
    "postgres": "dibs.stores.postgres",
    "postgresql+advisory": "dibs.stores.postgres_advisory",
    "zookeeper": "dibs.stores.zookeeper",
    "zookeepers": "dibs.stores.zookeeper",
    "etcd": "dibs.stores.etcd",
    "etcds": "dibs.stores.etcd",
    "consul": "dibs.stores.consul",
    "consuls": "dibs.stores.consul",
}
"""URL scheme to the module whose `open_url` serves it; imported when it is first used."""

DRIVERS = {
    "redis": "dibs.stores.redis",
    "psycopg": "dibs.stores.postgres",
    "psycopg_pool": "dibs.stores.postgres",
    "sqlalchemy": "dibs.stores.postgres",
    "kazoo": "dibs.stores.zookeeper",
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
        return cast(Store, importlib.import_module("dibs.stores.quorum").open_nodes(client, namespace, runtime))
    for kind in type(client).__mro__:
        module = DRIVERS.get(kind.__module__.partition(".")[0])
        if module is not None:
            return cast(Store, _imported(module).open_client(client, namespace, runtime))
    raise Misuse(f"a store is named by a URL such as sqlite: or memory:, or by a client of its driver, not {client!r}")


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
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, rarely needed

    for entry in entry_points(group="dibs.stores", name=scheme):
        return cast(Opener, entry.load())
    raise Misuse(f"no store is known for the URL scheme {scheme!r}; there is {_known()}")


def _known() -> str:
    return ", ".join(f"{scheme}:" for scheme in BUILT_IN)
