"""Puts the pieces of the port together, blocking or async as the runtime is."""

from __future__ import annotations

from typing import cast

from dibs.runtime import Driver, Runtime
from dibs.stores.redis.port.dial import AsyncDialer, BlockingDialer
from dibs.stores.redis.port.hints import Hints
from dibs.stores.redis.port.router import Route
from dibs.stores.redis.port.server_async import AsyncServer
from dibs.stores.redis.port.server_blocking import BlockingServer
from dibs.stores.redis.port.source import Login, RedisSource
from dibs.stores.redis.port.subscriber_async import AsyncSubscriber
from dibs.stores.redis.port.subscriber_blocking import BlockingSubscriber
from dibs.stores.redis.port.subscriptions import Subscriber, Subscriptions
from dibs.stores.redis.port.topology import Cluster, Map, Open, RedisServer, Sentinels


def routes_to(source: RedisSource, runtime: Runtime) -> Route:
    """How requests reach the servers of *source*."""
    opened = _opener(source.login, runtime)
    if source.kind == "sentinel":
        servers: Map = Sentinels(source, opened, _opener(source.sentinel_login or source.login, runtime))
    else:
        servers = (Cluster if source.kind == "cluster" else Map)(source, opened)
    return Route(servers, runtime)


def subscriptions_at(servers: Map, runtime: Runtime) -> Subscriptions:
    """How waiters are called from those servers."""

    def open_subscriber(server: RedisServer, hints: Hints) -> Subscriber:
        if runtime.driver is Driver.BLOCKING:
            return BlockingSubscriber(cast(BlockingServer, server), hints, runtime.now)
        return AsyncSubscriber(cast(AsyncServer, server), hints, runtime.now)

    return Subscriptions(servers, open_subscriber, runtime)


def _opener(login: Login, runtime: Runtime) -> Open:
    if runtime.driver is Driver.BLOCKING:
        blocking = BlockingDialer(login)
        return lambda address: BlockingServer(address, blocking, runtime.now)
    for_loop = AsyncDialer(login)
    return lambda address: AsyncServer(address, for_loop, runtime.now)
