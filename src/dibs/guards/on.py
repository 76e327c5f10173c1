"""A guard on one connection: what a lock needs to claim when it is acquired, and to seal when it is given back.

The claim is in the transaction that the connection is in. If it is in none, the claim gets one of its own, which is
committed at once: so a holder that stands still keeps no row locked, and no one waits for it longer than its ttl.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from dibs.ports.db.session import Session, on_connection, session_of
from dibs.ports.db.sync_or_async import Step


class ConnectionGuard(Protocol):
    """A guard whose calls take a connection."""

    @property
    def claim(self) -> Step[[str, int], None]:
        """Show a fence."""

    @property
    def seal(self) -> Step[[str, int], bool]:
        """End a fence."""


class OnConnection:
    """As `TableGuard.on` returns it, for `Lock.guarded`."""

    __slots__ = ("_conn", "_guard")

    def __init__(self, guard: ConnectionGuard, conn: Any) -> None:
        self._guard, self._conn = guard, conn

    @property
    def blocking(self) -> bool:
        """Whether the connection is one for blocking code."""
        return session_of(self._conn).blocking

    def claim(self, name: str, fence: int) -> Awaitable[object] | object:
        """Claim on the connection; to be awaited if that is one for async code."""
        done: object = _in_transaction(self._conn, self._guard.claim, name, fence)
        return done

    def seal(self, name: str, fence: int) -> Awaitable[object] | object:
        """Seal on the connection."""
        done: object = _in_transaction(self._conn, self._guard.seal, name, fence)
        return done

    def __repr__(self) -> str:
        return f"<{self._guard!r} on {self._conn!r}>"


@on_connection
async def _in_transaction(conn: Session, step: Step[[str, int], object], name: str, fence: int) -> None:
    if conn.begun():
        await step(conn, name, fence)
    else:
        async with conn.transaction():
            await step(conn, name, fence)
