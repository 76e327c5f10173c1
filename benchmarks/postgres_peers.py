"""Locks in PostgreSQL by other libraries, as their documentation shows them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from postgres_server import HOST

Guard = Callable[[], AbstractContextManager[object]]

DLOCK, PALS = "sqlalchemy-dlock, session lock", "pals, session lock"
MITHRIL, TOOZ = "mithril-locks, rows", "tooz, session lock"

MODULES = {DLOCK: "sqlalchemy_dlock", PALS: "pals", MITHRIL: "mithril", TOOZ: "tooz"}

LONGEST = 60.0
"""Seconds for which they may wait: nobody does."""


def present() -> list[str]:
    """Those that are installed here."""
    return [kind for kind, module in MODULES.items() if importlib.util.find_spec(module) is not None]


def opened(kind: str, port: int) -> AbstractContextManager[Guard]:
    """The lock of one *kind*."""
    return _OPENERS[kind](port)


def _engine_url(port: int) -> str:
    return f"postgresql+psycopg://bench@{HOST}:{port}/postgres"


@contextlib.contextmanager
def _dlock(port: int) -> Iterator[Guard]:
    """On one connection that stays open, which is the shortest way that it has."""
    sqlalchemy, dlock = importlib.import_module("sqlalchemy"), importlib.import_module("sqlalchemy_dlock")
    engine = sqlalchemy.create_engine(_engine_url(port))
    with engine.connect() as connection:
        yield lambda: dlock.create_sadlock(connection, "x")
    engine.dispose()


@contextlib.contextmanager
def _pals(port: int) -> Iterator[Guard]:
    locker = importlib.import_module("pals").Locker("bench", _engine_url(port).replace("psycopg", "psycopg2"))

    @contextlib.contextmanager
    def guard() -> Iterator[None]:
        lock = locker.lock("x")
        assert lock.acquire(acquire_timeout=int(LONGEST * 1000))
        try:
            yield
        finally:
            lock.release()

    yield guard
    locker.engine.dispose()


@contextlib.contextmanager
def _mithril(port: int) -> Iterator[Guard]:
    sqlalchemy, mithril = importlib.import_module("sqlalchemy"), importlib.import_module("mithril")
    structlog = importlib.import_module("structlog")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # its lines would be most of the time
    engine = sqlalchemy.create_engine(_engine_url(port))
    backend = importlib.import_module("mithril.backends").PostgresBackend(engine)
    yield lambda: mithril.Lock("x", backend=backend, ttl=30.0, timeout=LONGEST)
    engine.dispose()


@contextlib.contextmanager
def _tooz(port: int) -> Iterator[Guard]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its driver is deprecated, as every start of it says
        coordinator = importlib.import_module("tooz.coordination").get_coordinator(
            f"postgresql://bench@{HOST}:{port}?dbname=postgres", b"bench"
        )
        coordinator.start(start_heart=True)
    lock = coordinator.get_lock(b"x")
    yield lambda: lock
    coordinator.stop()


_OPENERS = {DLOCK: _dlock, PALS: _pals, MITHRIL: _mithril, TOOZ: _tooz}
