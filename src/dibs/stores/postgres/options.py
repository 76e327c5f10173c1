"""The options that a URL of a PostgreSQL store may have beside those of libpq."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dibs.errors import Misuse

COMMITS = ("on", "off", "local", "remote_write", "remote_apply")

POOLERS = ("none", "session", "transaction")

MOST_CONNECTIONS = 4

MOST_LOCKS = 1000
"""Session locks of one process, if the server's table of locks is not so small that it has to be fewer."""


class Options(NamedTuple):
    """What they say."""

    connections: int = MOST_CONNECTIONS
    pooler: str = ""
    """What stands between us and the server; empty: find out."""
    synchronous_commit: str = ""
    """For grants; empty: what the server does, but never "off"."""
    max_locks: int = MOST_LOCKS

    def pooled(self, claimed_pid: int, pid: int) -> bool:
        """Whether each transaction may be in another session: a pooler names a process of its own at the connect."""
        return self.pooler == "transaction" or (not self.pooler and claimed_pid != pid)


def options_from(found: Mapping[str, str]) -> Options:
    """Read them."""
    return Options(
        _count(found, "connections", MOST_CONNECTIONS),
        _word(found, "pooler", POOLERS),
        _word(found, "synchronous_commit", COMMITS),
        _count(found, "max_locks", MOST_LOCKS),
    )


def _count(found: Mapping[str, str], name: str, default: int) -> int:
    value = found.get(name, str(default))
    if not (value.isascii() and value.isdecimal() and 0 < int(value) < 100_000):
        raise Misuse(f"{name} is a whole number above 0")
    return int(value)


def _word(found: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = found.get(name, "")
    if value and value not in allowed:
        raise Misuse(f"{name} is one of {', '.join(allowed)}")
    return value
