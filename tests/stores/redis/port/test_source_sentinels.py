"""Sentinels that want a password, a user or TLS of their own, whatever their servers want."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import dibs
import dibs.aio
from dibs.errors import Misuse, StoreUnavailable
from dibs.stores.redis import rights
from dibs.stores.redis.port.source import from_url
from servers.certificates import Certificates
from servers.node import HOST, Node
from servers.redis import RedisServer

SESAME = "open:se/same"
QUOTED = "open%3Ase%2Fsame"

Start = Callable[..., Node]


@pytest.fixture
def master(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis(password="of:the@server")


@pytest.fixture
def start_sentinel(master: RedisServer) -> Iterator[Start]:
    """Starts a sentinel that knows where the master is, and for ten minutes does not mind that it has no password."""
    with ExitStack() as stack:

        def start(certificates: Certificates | None = None, *, password: str = "") -> Node:
            lines = [f"sentinel monitor dibs {HOST} {master.port} 1", "sentinel down-after-milliseconds dibs 600000"]
            lines += certificates.server_config if certificates else []
            if password:
                lines += [f"requirepass {password}", f"user locks on >secret {rights.sentinel()}"]
            tls = certificates.client_context() if certificates else None
            user = ("default", password) if password else None
            return stack.enter_context(Node("redis", lines, arguments=["--sentinel"], tls=tls, user=user))

        yield start


def url_of(sentinel: Node, scheme: str = "redis+sentinel", options: str = "") -> str:
    return f"{scheme}://:of%3Athe%40server@{HOST}:{sentinel.port}/dibs/0{options}"


def check(url: str) -> None:
    """A client that connects there gets a lock, in blocking and async code."""
    with dibs.connect(url) as client, client.lock("a"):
        pass

    async def main() -> None:
        async with dibs.aio.connect(url) as client, client.lock("a"):
            pass

    asyncio.run(main())


def test_a_password_of_the_sentinels_is_an_option(start_sentinel: Start) -> None:
    sentinel = start_sentinel(password=SESAME)
    check(url_of(sentinel, options=f"?sentinel_password={QUOTED}"))
    check(url_of(sentinel, options="?sentinel_username=locks&sentinel_password=secret"))


@pytest.mark.parametrize(
    ("options", "words"), [("", r"\?sentinel_password="), ("?sentinel_password=wrong", "refuses this user or password")]
)
def test_a_password_that_is_missing_or_wrong_is_told(start_sentinel: Start, options: str, words: str) -> None:
    sentinel = start_sentinel(password=SESAME)
    with dibs.connect(url_of(sentinel, options=options)) as client, pytest.raises(StoreUnavailable) as error:
        client.lock("a").try_acquire()
    [cause] = error.value.causes.values()
    with pytest.raises(StoreUnavailable, match=words):
        raise cause


def test_sentinels_may_have_tls_where_their_servers_have_none(
    start_sentinel: Start, certificates: Certificates
) -> None:
    sentinel = start_sentinel(certificates)
    check(url_of(sentinel, options=f"?sentinel_tls=yes&sentinel_ssl_ca_certs={certificates.authority}"))


def test_sentinels_are_asked_as_the_servers_are_unless_the_url_says_otherwise() -> None:
    def login(url: str) -> tuple[str, dict[str, object]]:
        source, _ = from_url(url, blocking=True)
        assert source.sentinel_login is not None
        assert not any(name.startswith("sentinel") for name in source.login.options)
        return source.sentinel_login.connection_class.__name__, dict(source.sentinel_login.options)

    plain, secure = "redis+sentinel://u:p@h/s/3", "rediss+sentinel://u:p@h/s?ssl_ca_certs=/a&client_name=n"
    assert login(plain) == ("Connection", {})
    assert login(secure) == ("SSLConnection", {"ssl_ca_certs": "/a"})
    assert login(f"{secure}&sentinel_tls=no") == ("Connection", {})
    assert login(f"{secure}&sentinel_ssl_ca_certs=/b") == ("SSLConnection", {"ssl_ca_certs": "/b"})


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+sentinel://h/s?sentinel_tls=perhaps", "sentinel_tls is yes or no"),
        ("redis+sentinel://h/s?sentinel_ssl_ca_certs=/secret", "sentinel_tls=yes"),
        ("redis+sentinel://h/s?sentinel_pasword=secret", "sentinel_password"),
        ("redis://h?sentinel_password=secret", "not known"),
    ],
)
def test_what_says_nothing_to_sentinels_is_misuse(url: str, words: str) -> None:
    with pytest.raises(Misuse, match=words) as refused:
        dibs.connect(url)
    assert "secret" not in str(refused.value)
