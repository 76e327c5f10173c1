"""The locks in Redis that are compared, blocking and async: dibs, other libraries, and the floors.

Each is opened once, as a client that makes locks by name; each lock is something to put after `with` or `async with`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import dibs
import dibs.aio
from redis_floors import FREE, TAKE, AsyncRawLock, FifoLock, HintLock, Multiplexed, RawLock, calls
from redis_server import HOST

Named = Callable[[str], Callable[[], AbstractContextManager[object]]]
"""A name to what is called before each use, because some libraries want a new object each time."""

AsyncNamed = Callable[[str], Callable[[], AbstractAsyncContextManager[object]]]

TTL = 30
FOR_EVER = 3600

RAW, PROTOCOL = "raw socket (floor)", "asyncio Protocol (floor)"
FIFO, HINT = "raw FIFO: Lua + BLPOP (floor)", "raw FIFO: called, then asks"
DIBS, DIBS_ASYNC = "dibs", "dibs, async"
REDIS_PY, REDIS_ASYNCIO = "redis-py Lock", "redis.asyncio Lock"
PYTHON_REDIS_LOCK, POTTERY, POTTERY_ASYNC = "python-redis-lock", "pottery", "pottery, async"
COREDIS, MITHRIL = "coredis Lock", "mithril-locks"

MODULES = {
    REDIS_PY: "redis",
    REDIS_ASYNCIO: "redis",
    PYTHON_REDIS_LOCK: "redis_lock",
    POTTERY: "pottery",
    POTTERY_ASYNC: "pottery",
    COREDIS: "coredis",
    MITHRIL: "mithril",
}


def present(kinds: list[str]) -> list[str]:
    """Those of *kinds* that are installed here."""
    return [kind for kind in kinds if kind not in MODULES or importlib.util.find_spec(MODULES[kind])]


def opened(kind: str, port: int) -> AbstractContextManager[Named]:
    """A blocking client of one *kind*."""
    return BLOCKING[kind](port)


def opened_async(kind: str, port: int) -> AbstractAsyncContextManager[AsyncNamed]:
    """A client of one *kind* for the running loop."""
    return ASYNC[kind](port)


def _again(lock: Any) -> Callable[[], Any]:
    """The same object for each use."""
    return lambda: lock


# --- blocking ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _dibs(port: int) -> Iterator[Named]:
    with dibs.connect(f"redis://{HOST}:{port}/0") as client:
        yield lambda name: _again(client.lock(name, ttl=TTL))


@contextlib.contextmanager
def _raw(port: int, shape: type[RawLock] = RawLock) -> Iterator[Named]:
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:

        def named(name: str) -> Callable[[], Any]:
            lock = shape(port, name, f"{os.getpid()}-{next(numbers)}")
            stack.callback(lock.close)
            return _again(lock)

        yield named


@contextlib.contextmanager
def _redis_py(port: int) -> Iterator[Named]:
    with importlib.import_module("redis").Redis(port=port) as client:
        yield lambda name: _again(client.lock(name, timeout=TTL))


@contextlib.contextmanager
def _python_redis_lock(port: int) -> Iterator[Named]:
    lock = importlib.import_module("redis_lock").Lock
    with importlib.import_module("redis").Redis(port=port) as client:
        yield lambda name: _again(lock(client, name, expire=TTL))


@contextlib.contextmanager
def _pottery(port: int) -> Iterator[Named]:
    lock = importlib.import_module("pottery").Redlock
    with importlib.import_module("redis").Redis(port=port) as client:
        yield lambda name: _again(lock(key=name, masters={client}, auto_release_time=TTL))


@contextlib.contextmanager
def _mithril(port: int) -> Iterator[Named]:
    mithril, backends = importlib.import_module("mithril"), importlib.import_module("mithril.backends")
    structlog = importlib.import_module("structlog")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # its lines would be most of the time
    with importlib.import_module("redis").Redis(port=port) as client:
        backend = backends.RedisBackend(client)
        yield lambda name: lambda: mithril.Lock(name, backend=backend, ttl=TTL, timeout=FOR_EVER)


@contextlib.contextmanager
def _in_loop(port: int) -> Iterator[Named]:
    """dibs in an event loop, used from outside of it: for questions of milliseconds, where that costs little."""
    with asyncio.Runner() as runner:
        client = dibs.aio.connect(f"redis://{HOST}:{port}/0")

        def named(name: str) -> Callable[[], Any]:
            lock = client.lock(name, ttl=TTL)
            return lambda: _InLoop(runner, lock)

        yield named
        runner.run(client.close())


class _InLoop:
    def __init__(self, runner: asyncio.Runner, lock: dibs.aio.Lock) -> None:
        self._runner, self._lock = runner, lock

    def __enter__(self) -> None:
        self._lease = self._runner.run(self._lock.acquire())

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._lease.release())


BLOCKING: dict[str, Callable[[int], AbstractContextManager[Named]]] = {
    RAW: _raw,
    FIFO: lambda port: _raw(port, FifoLock),
    HINT: lambda port: _raw(port, HintLock),
    DIBS: _dibs,
    DIBS_ASYNC: _in_loop,
    REDIS_PY: _redis_py,
    PYTHON_REDIS_LOCK: _python_redis_lock,
    POTTERY: _pottery,
    MITHRIL: _mithril,
}

# --- async -------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _dibs_async(port: int) -> AsyncIterator[AsyncNamed]:
    async with dibs.aio.connect(f"redis://{HOST}:{port}/0") as client:
        yield lambda name: _again(client.lock(name, ttl=TTL))


@contextlib.asynccontextmanager
async def _protocol(port: int) -> AsyncIterator[AsyncNamed]:
    transport, protocol = await asyncio.get_running_loop().create_connection(Multiplexed, HOST, port)

    yield lambda name: _again(AsyncRawLock(protocol, calls(port, name, name, TAKE, FREE)))
    transport.close()


@contextlib.asynccontextmanager
async def _redis_asyncio(port: int) -> AsyncIterator[AsyncNamed]:
    module = importlib.import_module("redis.asyncio")
    pool = module.BlockingConnectionPool(port=port, max_connections=100, timeout=None)
    async with module.Redis(connection_pool=pool) as client:
        yield lambda name: _again(client.lock(name, timeout=TTL))
    await pool.aclose()


@contextlib.asynccontextmanager
async def _pottery_async(port: int) -> AsyncIterator[AsyncNamed]:
    module, lock = importlib.import_module("redis.asyncio"), importlib.import_module("pottery").AIORedlock
    pool = module.BlockingConnectionPool(port=port, max_connections=100, timeout=None)
    async with module.Redis(connection_pool=pool) as client:
        yield lambda name: _again(lock(key=name, masters={client}, auto_release_time=TTL))
    await pool.aclose()


@contextlib.asynccontextmanager
async def _coredis(port: int) -> AsyncIterator[AsyncNamed]:
    async with importlib.import_module("coredis").Redis(host=HOST, port=port) as client:
        yield lambda name: _again(client.lock(name, timeout=TTL))


ASYNC: dict[str, Callable[[int], AbstractAsyncContextManager[AsyncNamed]]] = {
    PROTOCOL: _protocol,
    DIBS_ASYNC: _dibs_async,
    REDIS_ASYNCIO: _redis_asyncio,
    POTTERY_ASYNC: _pottery_async,
    COREDIS: _coredis,
}
