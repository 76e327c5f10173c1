"""What is sent to PostgreSQL: statements, their values, and the bound on how long they wait for a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Value: TypeAlias = bytes | None
Row: TypeAlias = tuple[str | None, ...]
Rows: TypeAlias = list[Row]


class Statement:
    """One SQL statement; it is prepared at its first use on each connection."""

    __slots__ = ("name", "sql")

    def __init__(self, name: str, sql: str) -> None:
        self.name, self.sql = f"dibs_{name}".encode(), sql.encode()


class Call(NamedTuple):
    """A statement and its values."""

    statement: Statement
    values: Sequence[Value] = ()


Transaction: TypeAlias = Sequence[Call]

BOUNDS = (8000, 4000, 2000, 1000, 500, 250, 120, 60, 30, 10, 1)
"""ms for which a statement waits for a row at most: in steps, so that it rarely has to be said anew."""

_SETTINGS = """SELECT set_config('lock_timeout', $1, {local}),
    CASE WHEN $2::text <> '' THEN set_config('synchronous_commit', $2::text, {local})
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', {local}) END"""

OF_SESSION = Statement("session", _SETTINGS.format(local="false"))

OF_TRANSACTION = Statement("transaction", _SETTINGS.format(local="true"))


def bound_of(seconds: float) -> int:
    """The bound, in ms, that ends within *seconds*."""
    left = seconds * 950
    return next((step for step in BOUNDS if step <= left), BOUNDS[-1])
