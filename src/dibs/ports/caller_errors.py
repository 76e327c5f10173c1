"""What a driver's error says, whichever driver it is from and whatever wrapped it."""

from __future__ import annotations

from collections.abc import Iterator


def lost_a_race(error: BaseException) -> bool:
    """Whether another transaction was in the way, so that the same transaction may succeed when it runs again."""
    return _state(error) in {"40001", "40P01", "SQLITE_BUSY_SNAPSHOT"}


def not_in_time(error: BaseException) -> bool:
    """Whether a lock was not free within ``lock_timeout``."""
    return _state(error) == "55P03"


def no_such_table(error: BaseException) -> bool:
    """Whether the statement names a table that is not there."""
    return _state(error) == "42P01" or any(str(each).startswith("no such table") for each in _each(error))


def not_allowed(error: BaseException) -> bool:
    """Whether the user of the connection has no right to do it."""
    return _state(error) == "42501"


def _state(error: BaseException) -> str:
    """The SQLSTATE, or SQLite's name for the error; empty if there is none."""
    for each in _each(error):
        state = getattr(each, "sqlstate", None) or getattr(each, "sqlite_errorname", None)
        if isinstance(state, str):
            return state
    return ""


def _each(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it wraps: SQLAlchemy keeps the driver's as ``orig``, Django as the cause."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "orig", None) or error.__cause__
