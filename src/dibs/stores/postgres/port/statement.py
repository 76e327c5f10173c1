"""What is sent to PostgreSQL: statements, their values, the settings they need, and how long they wait for a row."""

# ruff: noqa: S608 - the statements are put together from constants

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

RELIED_ON = {
    "statement_timeout": "0",  # each statement has its `lock_timeout`, and ends soon after
    "transaction_timeout": "0",
    "extra_float_digits": "1",  # times are numbers with a fraction
    "exit_on_error": "off",
    "jit": "off",  # it takes seconds to compile what runs for a millisecond
}
"""Settings that a role, a database or the server may have otherwise, and which we need as they are here."""

OF_OURS = {"default_transaction_isolation": "read committed", **RELIED_ON}
"""The same in a session that is ours alone. Above READ COMMITTED whoever waited for a row is refused it."""

_SETTINGS = """SELECT set_config('lock_timeout', $1, {local}),
    CASE WHEN $2::text <> '' THEN set_config('synchronous_commit', $2::text, {local})
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', {local}) END"""


def _each(settings: dict[str, str]) -> str:
    """Those of *settings* that the server knows."""
    rows = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
    return f"(VALUES {rows}) AS wanted (name, value) WHERE current_setting(name, true) <> value"


OF_SESSION = Statement("session", _SETTINGS.format(local="false"))

OF_TRANSACTION = Statement("transaction", _SETTINGS.format(local="true"))

OF_HOSTILE = Statement(
    "of_hostile",
    f"{_SETTINGS.format(local='true')}, (SELECT count(set_config(name, value, true)) FROM {_each(RELIED_ON)})",
)
"""The same where the sessions that others share have settings that would hurt us."""

HOSTILE = f"EXISTS (SELECT FROM {_each(OF_OURS)} AND name <> 'jit')"

BEGIN, COMMIT = Statement("begin", "BEGIN ISOLATION LEVEL READ COMMITTED"), Statement("commit", "COMMIT")
"""Around a transaction there: in a session that others share it is said each time."""

# $1: the process that the other side named at the connect, or 0 if the session is ours whatever that was.
SETTLE_IN = Statement(
    "settle_in",
    f"SELECT set_config(name, value, false) FROM {_each(OF_OURS)} AND $1::int IN (0, pg_backend_pid())",
)


def bound_of(seconds: float) -> int:
    """The bound, in ms, that ends within *seconds*."""
    left = seconds * 950
    return next((step for step in BOUNDS if step <= left), BOUNDS[-1])
