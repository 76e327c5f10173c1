"""Tests of the Redis store on one real server, in both colours, alone or with a replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dibs.testing.contract.suite import Fixtures, Kind
from servers.redis import RedisServer


class RedisKind(Kind, Fixtures):
    """Subclass it, as those of the contract are."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        """A server that is empty."""
        return redis_server.url


class ReplicaKind(RedisKind):
    """What is written counts only when the replica has it."""

    @pytest.fixture
    def replica(self, redis_server: RedisServer, start_redis: Callable[..., RedisServer]) -> Iterator[RedisServer]:
        """The only one, which may be stopped."""
        replica = start_redis()
        replica.replicate(redis_server)
        yield replica
        replica.cont()

    @pytest.fixture
    def url(self, redis_server: RedisServer, replica: RedisServer) -> str:
        """A server that is empty, with its replica."""
        return f"{redis_server.url}?min_replicas=1"
