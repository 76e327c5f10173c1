"""A Redlock of three and of five real servers passes the contract of all stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import ClassVar

import pytest

import dibs
from dibs.runtime import Runtime
from dibs.stores.quorum import open_url
from dibs.stores.store import Store
from dibs.testing.contract import StoreContract
from servers.redis import RedisServer


@pytest.fixture(scope="module")
def crew() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(5)]


class Contract(StoreContract):
    runtimes: ClassVar[tuple[str, ...]] = ("threads", "asyncio")
    short = 0.5  # a node has a part of it to answer, and a busy machine to do so

    def open_store(self, url: str, namespace: str, runtime: Runtime) -> Store:
        return open_url(url, namespace, runtime)


def url_of(crew: list[RedisServer]) -> str:
    """Empty nodes that have met: a set begins only when all of them answer, which takes longer than a short ttl."""
    for server in crew:
        server.reset()
    url = "redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in crew) + "/0"
    with dibs.connect(url) as client, client.lock("first"):
        return url


class TestThree(Contract):
    @pytest.fixture
    def url(self, crew: list[RedisServer]) -> str:
        return url_of(crew[:3])


class TestFive(Contract):
    short = 1.0  # five have more to do than three

    @pytest.fixture
    def url(self, crew: list[RedisServer]) -> str:
        return url_of(crew)
