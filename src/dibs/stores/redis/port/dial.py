"""Makes connections: redis-py opens the socket, with its TLS and its options; the greeting is ours, in one write.

redis-py would greet in up to five round trips and retry by itself. Its connection object is thrown away once the
socket is open: nothing of its command layer is on the lock path, where it costs four times the round trip.
"""

from __future__ import annotations

import inspect
from typing import Any

import redis

from dibs.errors import StoreUnavailable
from dibs.log import logger
from dibs.stores.redis.port.command import command
from dibs.stores.redis.port.errors import refused
from dibs.stores.redis.port.source import Login, RedisAddress

MEMORY = command("INFO", "memory")
"""A command that goes with the first request to a server: it asks for the eviction policy."""


class BlockingDialer:
    """Opens sockets for threads."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def socket(self, address: RedisAddress, within: float) -> Any:
        """An open socket, within *within* seconds."""
        try:
            connection = _prepared(self._login, address, within)
            connection.connect()
        except (redis.RedisError, OSError) as exc:
            raise _unreachable(address, exc) from exc
        sock, connection._sock = connection._sock, None  # ours from now on
        return sock

    def greeting(self) -> list[bytes]:
        """The commands that log in, name the client and choose the database."""
        provider = self._login.options.get("credential_provider")
        return greeting(self._login, provider.get_credentials() if provider else None)


class AsyncDialer:
    """Opens transports for an event loop."""

    def __init__(self, login: Login) -> None:
        self._login = login

    async def writer(self, address: RedisAddress, within: float) -> Any:
        """A stream writer whose transport is open. It has to be kept as long as the transport: it closes it."""
        try:
            connection = _prepared(self._login, address, within)
            await connection.connect()
        except (TimeoutError, redis.RedisError, OSError, RuntimeError) as exc:  # the last: no thread, to resolve it
            raise _unreachable(address, exc) from exc
        writer, connection._writer, connection._reader = connection._writer, None, None
        return writer

    async def greeting(self) -> list[bytes]:
        """The commands that log in, name the client and choose the database."""
        provider = self._login.options.get("credential_provider")
        return greeting(self._login, await provider.get_credentials_async() if provider else None)


def greeting(login: Login, credentials: tuple[Any, ...] | None) -> list[bytes]:
    """The commands with which a connection begins."""
    options = login.options
    if options.get("redis_connect_func"):
        return []  # the caller's own, which redis-py has called
    user, password = options.get("username"), options.get("password")
    if credentials is None and (user or password):
        credentials = (user, password or "") if user else (password,)
    commands = [command("AUTH", *credentials)] if credentials else []
    if options.get("client_name"):
        commands.append(command("CLIENT", "SETNAME", options["client_name"]))
    if options.get("db"):
        commands.append(command("SELECT", int(options["db"])))
    return commands


def check_greeting(name: str, replies: list[Any]) -> None:
    """Raise `StoreUnavailable` if the server refused the greeting; warn if it may throw locks away."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise StoreUnavailable(name, refused(name, reply).problem)


def warn_of_eviction(name: str, memory: Any) -> None:
    """Say once for each server that it deletes keys when its memory is full, locks that are held among them.

    *memory* is its answer to MEMORY: a user who may not ask is no problem of ours.
    """
    if not isinstance(memory, bytes):
        return
    facts = dict(line.split(b":", 1) for line in memory.splitlines() if b":" in line)
    policy = facts.get(b"maxmemory_policy", b"noeviction").decode()
    if policy != "noeviction" and name not in _warned:
        _warned.add(name)
        logger().warning(
            "the Redis server %s has maxmemory-policy %s, so it may delete locks that are held when its memory is "
            "full; set it to noeviction",
            name,
            policy,
        )


_warned = set[str]()


def _prepared(login: Login, address: RedisAddress, within: float) -> Any:
    options = {
        **login.options,
        "socket_connect_timeout": max(within, 0.001),
        "socket_timeout": max(within, 0.001),
        "retry": None,
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,
    }
    options.setdefault("redis_connect_func", _no_greeting)
    where = {"host": address.host, "port": address.port} if address.port else {"path": address.host}
    options.pop("path", None)
    return login.connection_class(**options, **where)


def _no_greeting(connection: object) -> None:
    """Instead of redis-py's own."""


def _unreachable(address: RedisAddress, exc: BaseException) -> StoreUnavailable:
    text = str(exc) or type(exc).__name__
    if inspect.isclass(exc) or isinstance(exc, redis.TimeoutError | TimeoutError):
        text = "the connection was not open in time"
    return StoreUnavailable(str(address), f"no connection: {text}")
