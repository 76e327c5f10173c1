"""A Redlock of three and of five real servers passes the contract of all stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar

import pytest

import dibs
from dibs.runtime import Runtime
from dibs.stores.redlock.rights import redlock as rights
from dibs.stores.redlock.store import open_url
from dibs.stores.store import Store
from dibs.testing.contract import StoreContract
from servers.redis import RedisServer
from stores.redis.users import allowed, as_user


@pytest.fixture(scope="module")
def crew() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(5)]


class Contract(StoreContract):
    runtimes: ClassVar[tuple[str, ...]] = ("threads", "asyncio")

    def open_store(self, url: str, namespace: str, runtime: Runtime) -> Store:
        return open_url(url, namespace, runtime)


@contextmanager
def url_of(crew: list[RedisServer]) -> Iterator[str]:
    """Empty nodes that have met, as a user with only the rights that the docs name.

    A set begins only when all of them answer, which takes longer than a short ttl.
    """
    for server in crew:
        server.reset()
    url = as_user("redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in crew) + "/0")
    with allowed(crew, rights()):
        with dibs.connect(url) as client, client.lock("first"):
            pass
        yield url


class TestThree(Contract):
    @pytest.fixture
    def url(self, crew: list[RedisServer]) -> Iterator[str]:
        with url_of(crew[:3]) as url:
            yield url


class TestFive(Contract):
    short = 2.0  # five have more to do than three

    @pytest.fixture
    def url(self, crew: list[RedisServer]) -> Iterator[str]:
        with url_of(crew) as url:
            yield url
