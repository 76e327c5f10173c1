"""The locks in PostgreSQL that are compared: dibs, and the bare statements through psycopg that each form needs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg

import dibs
import postgres_peers

Guard = Callable[[], AbstractContextManager[object]]

BARE, BARE_ASYNC = "bare upsert + update, synchronous", "bare upsert + update, synchronous_commit=off"
ROWS, ROWS_ASYNC = "dibs postgresql:", "dibs postgresql:, synchronous_commit=off"
ADVISORY, FENCED = "bare pg_advisory_lock + unlock", "the same, and a fence row"
SESSION = "dibs postgresql+advisory:"

UPSERT = """INSERT INTO bare VALUES (%s, %s, 1, clock_timestamp() + interval '30 s')
    ON CONFLICT (name) DO UPDATE SET token = excluded.token, ends_at = clock_timestamp() + interval '30 s',
        fence = greatest(bare.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
    WHERE bare.token IS NULL OR bare.ends_at <= clock_timestamp() RETURNING fence"""

FREE = "UPDATE bare SET token = NULL, ends_at = clock_timestamp() WHERE name = %s AND token = %s"

FENCE = """INSERT INTO bare_fence VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET
    fence = greatest(bare_fence.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) RETURNING fence"""


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Make the tables of the bare statements."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS bare (name text PRIMARY KEY, token text, fence bigint, ends_at timestamptz)"
    )
    connection.execute("CREATE TABLE IF NOT EXISTS bare_fence (key bigint PRIMARY KEY, fence bigint)")


class BareRow:
    """A lease row without anything around it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._token = os.urandom(16).hex()
        assert self._connection.execute(UPSERT, ("x", self._token)).fetchone()

    def __exit__(self, *error: object) -> None:
        self._connection.execute(FREE, ("x", self._token))


class BareLock:
    """A session lock without anything around it; with *fenced* it counts."""

    def __init__(self, connection: psycopg.Connection[Any], *, fenced: bool = False) -> None:
        self._connection, self._fenced = connection, fenced

    def __enter__(self) -> None:
        self._connection.execute("SELECT pg_advisory_lock(%s)", (42,))
        if self._fenced:
            assert self._connection.execute(FENCE, (42,)).fetchone()

    def __exit__(self, *error: object) -> None:
        self._connection.execute("SELECT pg_advisory_unlock(%s)", (42,))


@contextlib.contextmanager
def opened(kind: str, url: Callable[[str, str], str]) -> Iterator[Guard]:
    """The lock of one *kind*; *url* makes the URL for a scheme and options."""
    if kind in postgres_peers.MODULES:
        with postgres_peers.opened(kind, int(url("postgresql", "").rpartition(":")[2].partition("/")[0])) as guard:
            yield guard
        return
    if kind in {ROWS, ROWS_ASYNC, SESSION}:
        scheme = "postgresql+advisory" if kind == SESSION else "postgresql"
        with dibs.connect(url(scheme, "?synchronous_commit=off" if kind == ROWS_ASYNC else "")) as client:
            lock = client.lock("x")
            yield lambda: lock
        return
    with psycopg.connect(url("postgresql", ""), autocommit=True, prepare_threshold=0) as connection:
        prepare(connection)
        if kind in {BARE_ASYNC, FENCED}:
            connection.execute("SET synchronous_commit = off")
        bare = BareRow(connection) if kind in {BARE, BARE_ASYNC} else BareLock(connection, fenced=kind == FENCED)
        yield lambda: bare
