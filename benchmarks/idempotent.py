"""What does an idempotent call cost over the statements that one would write by hand, the first time and repeated?"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import dibs
import postgres_server
import redis_server
from page import Answer, at_most, micros, table, times
from postgres_server import PostgresServer
from redis_server import Plain, RedisServer
from rounds import Scale, interleaved, median, ratio, timed

RESULT = "receipt 17"

AIM = {"first": 3.0, "repeated": 4.0}
"""How many times the bare statements a call may cost."""

Call = Callable[[str], object]
"""Does the work of a key, or finds its result."""


def measure(folder: Path, scale: Scale) -> Answer:
    """Each store with the statements that it is compared to: a first call with a new key, and one that is repeated."""
    with contextlib.ExitStack() as stack:
        calls: dict[str, Call] = {}
        for store, opened in STORES.items():
            with contextlib.suppress(FileNotFoundError):
                bare, url = stack.enter_context(opened(folder))
                calls[f"bare, {store}"] = bare
                calls[f"dibs, {store}"] = _dibs(stack.enter_context(dibs.connect(url)))
        blocks = {f"{name}, {what}": _block(call, what, scale) for name, call in calls.items() for what in AIM}
        for block in blocks.values():
            block()
        gc.freeze()
        found = interleaved(blocks, scale.rounds)
    middle = {name: [median(took) for took in rounds] for name, rounds in found.items()}
    stores = [store for store in STORES if f"dibs, {store}" in calls]
    over = {
        (store, what): ratio(middle[f"dibs, {store}, {what}"], middle[f"bare, {store}, {what}"])
        for store in stores
        for what in AIM
    }
    rows = [
        [f"{name.partition(',')[0]}, {store}", *_figures(middle, name, over.get((store, "first"), 1.0), store, over)]
        for store in stores
        for name in (f"bare, {store}", f"dibs, {store}")
    ]
    head = ["one call, nobody else has the key", "first, ratio", "first, µs", "repeated, ratio", "repeated, µs"]
    aims = [
        at_most(f"{what} call, {store}, over the bare statements", AIM[what], found)
        for (store, what), found in over.items()
    ]
    return Answer([table(head, rows)], aims)


def _figures(
    middle: dict[str, list[float]], name: str, first: float, store: str, over: dict[tuple[str, str], float]
) -> list[str]:
    bare = name.startswith("bare")
    ratios = [1.0, 1.0] if bare else [first, over[store, "repeated"]]
    took = [median(middle[f"{name}, {what}"]) for what in AIM]
    return [times(ratios[0]), micros(took[0]), times(ratios[1]), micros(took[1])]


def _block(call: Call, what: str, scale: Scale) -> Callable[[], list[float]]:
    run, numbers = uuid.uuid4().hex, itertools.count()
    call(f"{run} same")
    if what == "first":
        return lambda: timed(lambda: call(f"{run} {next(numbers)}"), scale.seconds)
    return lambda: timed(lambda: call(f"{run} same"), scale.seconds)


def _dibs(client: dibs.Client) -> Call:
    def call(key: str) -> object:
        with client.idempotent(key) as call:
            if not call.replayed:
                call.done(RESULT)
        return call.result

    return call


@contextlib.contextmanager
def _sqlite(folder: Path) -> Iterator[tuple[Call, str]]:
    """Each statement is on the disk before the next: that is what SQLite does if it is not told otherwise."""
    conn = sqlite3.connect(folder / "bare.db", isolation_level=None)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("CREATE TABLE done (key TEXT PRIMARY KEY, result TEXT)")

    def call(key: str) -> object:
        if conn.execute("INSERT INTO done VALUES (?, NULL) ON CONFLICT DO NOTHING", (key,)).rowcount:
            conn.execute("UPDATE done SET result = ? WHERE key = ?", (RESULT, key))
            return RESULT
        return conn.execute("SELECT result FROM done WHERE key = ?", (key,)).fetchone()[0]

    with contextlib.closing(conn):
        yield call, f"sqlite://{folder}/dibs.db"


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[tuple[Call, str]]:
    """On a plain socket, without a driver."""
    if redis_server.program() is None:
        raise FileNotFoundError("redis-server")
    with RedisServer(folder) as server, contextlib.closing(Plain(server.port)) as ask:

        def call(key: str) -> object:
            if ask("SET", key, "running", "NX", "PX", "30000"):
                ask("SET", key, RESULT, "PX", "86400000")
                return RESULT
            return ask("GET", key)

        yield call, server.url


@contextlib.contextmanager
def _postgres(_folder: Path) -> Iterator[tuple[Call, str]]:
    """With psycopg, each statement a transaction of its own, prepared."""
    if postgres_server.program("postgres") is None:
        raise FileNotFoundError("postgres")
    with PostgresServer() as server, server.connect() as conn:
        conn.execute("CREATE TABLE done (key TEXT PRIMARY KEY, result TEXT)")

        def call(key: str) -> object:
            if conn.execute("INSERT INTO done VALUES (%s) ON CONFLICT DO NOTHING", (key,), prepare=True).rowcount:
                conn.execute("UPDATE done SET result = %s WHERE key = %s", (RESULT, key), prepare=True)
                return RESULT
            row = conn.execute("SELECT result FROM done WHERE key = %s", (key,), prepare=True).fetchone()
            return row and row[0]

        yield call, server.url()


STORES = {"SQLite": _sqlite, "Redis": _redis, "PostgreSQL": _postgres}
