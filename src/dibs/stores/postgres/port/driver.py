"""Imports psycopg, and knows what we need of libpq beneath it.

Everything goes through `psycopg.pq`, psycopg's own wrapper of libpq, in non-blocking mode: we wait for the socket
ourselves, in the runtime of the caller. So one piece of code serves threads and asyncio, no wait exceeds its budget,
and an answer that was not waited for can be picked up later.
"""

from __future__ import annotations

try:
    import psycopg
    from psycopg import pq
    from psycopg.pq.abc import PGconn, PGresult
except ImportError as exc:
    raise ImportError("the PostgreSQL stores need psycopg 3: pip install 'dibs[postgres]'") from exc

from dibs.errors import StoreUnavailable

LEAST_LIBPQ = 140000
"""The first that sends several statements before the first answer."""

__all__ = ["PGconn", "PGresult", "check_libpq", "pq", "psycopg"]


def check_libpq(store: str) -> None:
    """Refuse a libpq that is too old."""
    if pq.version() < LEAST_LIBPQ:
        raise StoreUnavailable(
            store,
            f"the libpq of this machine is of PostgreSQL {pq.version() // 10000}, and 14 or newer is needed; "
            "pip install 'psycopg[binary]' brings one",
        )
