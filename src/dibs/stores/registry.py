"""Finds the store for a URL: built-in schemes by table, third-party ones by entry point."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from dibs.errors import Misuse
from dibs.runtime import Runtime
from dibs.stores.store import Store

Opener = Callable[[str, str, Runtime], Store]
"""Makes a store for a URL, a namespace and a runtime. It does no I/O: the first step does."""

BUILT_IN = {
    "memory": "dibs.stores.memory",
    "sqlite": "dibs.stores.sqlite",
}
"""URL scheme to the module whose `open_url` serves it; imported when it is first used."""

PLANNED = [
    "redis",
    "rediss",
    "unix",
    "valkey",
    "redis+sentinel",
    "redis+cluster",
    "redlock",
    "postgresql",
    "postgresql+advisory",
    "zookeeper",
    "etcd",
    "etcds",
    "consul",
]


def open_store(url: str, namespace: str, runtime: Runtime) -> Store:
    """Make the store that *url* names, with names of its own in *namespace*."""
    scheme = url.partition(":")[0].lower()
    if scheme in BUILT_IN:
        opener = cast(Opener, importlib.import_module(BUILT_IN[scheme]).open_url)
    else:
        opener = _third_party(scheme)
    return opener(url, namespace, runtime)


def _third_party(scheme: str) -> Opener:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, rarely needed

    for entry in entry_points(group="dibs.stores", name=scheme):
        return cast(Opener, entry.load())
    if scheme in PLANNED:
        raise Misuse(f"{scheme}: is not in this version of dibs yet; there is {_known()}")
    raise Misuse(f"no store is known for the URL scheme {scheme!r}; there is {_known()}")


def _known() -> str:
    return ", ".join(f"{scheme}:" for scheme in BUILT_IN)
