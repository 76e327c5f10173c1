"""Who has an advisory lock, as far as the server tells: its row, or what is known of the session that holds it."""

from __future__ import annotations

from dibs.holder import Holder
from dibs.ports.db.session import Session
from dibs.postgres.key import Target
from dibs.stores.postgres.port.values import original

# What a transaction that holds the lock has written cannot be seen yet: a row that a transaction wrote says who had
# the lock before. That of a session lock counts if the session that wrote it holds the lock.
HOLDER = """SELECT s.pid, s.usename, host(s.client_addr), s.application_name,
        CAST(extract(epoch FROM coalesce(s.xact_start, s.backend_start)) AS float8),
        a.fence, a.host, a.pid, a.login, a.note, CAST(extract(epoch FROM a.since) AS float8)
    FROM pg_locks AS l JOIN pg_stat_activity AS s ON s.pid = l.pid
        LEFT JOIN {table} AS a ON a.key = CAST(:key AS bigint) AND a.backend = l.pid AND a.since >= s.backend_start
            AND left(a.token, 5) <> 'xact '
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
        AND (l.classid::bigint << 32 | l.objid::bigint) = CAST(:key AS bigint)
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY l.mode, a.fence LIMIT 1"""

NO_TABLE = """(SELECT CAST(NULL AS bigint) AS key, CAST(NULL AS integer) AS backend, CAST(NULL AS timestamptz) AS since,
    CAST(NULL AS text) AS token, CAST(NULL AS bigint) AS fence, CAST(NULL AS text) AS host,
    CAST(NULL AS integer) AS pid, CAST(NULL AS text) AS login, CAST(NULL AS text) AS note)"""


SHARES = """(SELECT key, backend, since, token, fence, host, pid, login, note FROM dibs_advisory_share
    UNION ALL SELECT key, backend, since, token, fence, host, pid, login, note FROM dibs_advisory)"""

# Who only takes locks in transactions, or migrates, may have no right to look at them.
THERE = """SELECT coalesce(has_table_privilege(to_regclass('dibs_advisory'), 'SELECT'), false),
    coalesce(has_table_privilege(to_regclass('dibs_advisory_share'), 'SELECT'), false)"""


async def holder_of(conn: Session, lock: Target) -> Holder | None:
    """Who has the lock now; None if nobody has, any more."""
    there, shared = (await conn.rows(THERE))[0]
    table = (SHARES if shared else "dibs_advisory") if there else NO_TABLE
    found = await conn.rows(HOLDER.format(table=table), key=lock.key)
    if not found:
        return None
    backend, user, address, application, began, fence, host, pid, login, note, since = found[0]
    if fence is not None:
        return Holder(lock.name, fence, original(host), pid, original(login), original(note), since, None)
    said = f"session {backend} of the database"
    if application:
        said += f", {application}"
    return Holder(lock.name, 0, address or "the server's host", backend, user or "", said, began or 0.0, None)
