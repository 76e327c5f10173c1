"""Puts the parts of the port together, in the colour of the runtime."""

from __future__ import annotations

from typing import cast

from dibs.ports.redis_async_ear import AsyncEar
from dibs.ports.redis_blocking import BlockingServer
from dibs.ports.redis_dial import AsyncDialer, BlockingDialer
from dibs.ports.redis_ear import BlockingEar
from dibs.ports.redis_hints import Hints
from dibs.ports.redis_listening import Ear, Listening
from dibs.ports.redis_map import Cluster, Map, Open, Sentinels, Server
from dibs.ports.redis_multiplexed import AsyncServer
from dibs.ports.redis_route import Route
from dibs.ports.redis_source import Login, Source
from dibs.runtime import Runtime


def routes_to(source: Source, runtime: Runtime) -> Route:
    """How requests reach the servers of *source*."""
    opened = _opener(source.login, runtime)
    if source.kind == "sentinel":
        servers: Map = Sentinels(source, opened, _opener(source.sentinel_login or source.login, runtime))
    else:
        servers = (Cluster if source.kind == "cluster" else Map)(source, opened)
    return Route(servers, runtime)


def listening_on(servers: Map, runtime: Runtime) -> Listening:
    """How waiters are called from those servers."""

    def open_ear(server: Server, hints: Hints) -> Ear:
        if runtime.blocking:
            return BlockingEar(cast(BlockingServer, server), hints, runtime.now)
        return AsyncEar(cast(AsyncServer, server), hints, runtime.now)

    return Listening(servers, open_ear, runtime)


def _opener(login: Login, runtime: Runtime) -> Open:
    if runtime.blocking:
        blocking = BlockingDialer(login)
        return lambda address: BlockingServer(address, blocking, runtime.now)
    for_loop = AsyncDialer(login)
    return lambda address: AsyncServer(address, for_loop, runtime.now)
