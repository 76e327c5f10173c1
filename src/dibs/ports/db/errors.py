"""What a driver's error says, whichever driver it is from and whatever wrapped it."""

from __future__ import annotations

from collections.abc import Iterator

MYSQL_DEADLOCK = 1213
"""Its drivers tell numbers; this one also stands for a transaction that could not be ordered with others."""

OF_MYSQL = {"pymysql", "MySQLdb", "aiomysql", "asyncmy"}


def lost_a_race(error: BaseException) -> bool:
    """Whether another transaction was in the way, so that the same transaction may succeed when it runs again."""
    return code_of(error) in {"40001", "40P01", "SQLITE_BUSY_SNAPSHOT"}


def not_in_time(error: BaseException) -> bool:
    """Whether a lock was not free within ``lock_timeout``."""
    return code_of(error) == "55P03"


def no_such_table(error: BaseException) -> bool:
    """Whether the statement names a table that is not there."""
    return code_of(error) == "42P01" or any(str(each).startswith("no such table") for each in _each(error))


def not_allowed(error: BaseException) -> bool:
    """Whether the user of the connection has no right to do it."""
    return code_of(error) == "42501"


def code_of(error: BaseException) -> str:
    """The SQLSTATE, or SQLite's name for the error; empty if the driver tells neither."""
    return next(filter(None, map(_code, _each(error))), "")


def _code(error: BaseException) -> str:
    """The same of one driver's own error: each keeps it in another place."""
    for attribute in ("sqlstate", "pgcode", "sqlite_errorname"):  # psycopg and asyncpg, psycopg2, sqlite3
        if isinstance(code := getattr(error, attribute, None), str):
            return code
    told = error.args[0] if error.args else None
    if isinstance(told, dict) and isinstance(code := told.get("C"), str):  # pg8000: what the server sent, by letters
        return code
    return "40001" if told == MYSQL_DEADLOCK and type(error).__module__.partition(".")[0] in OF_MYSQL else ""


def _each(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it wraps: SQLAlchemy keeps the driver's as ``orig``, Django as the cause."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "orig", None) or error.__cause__
