"""The statements of session locks: the advisory lock itself, and the row that keeps its fence and says who has it.

The lock is PostgreSQL's, so it ends with the session, and no transaction takes it back. The row is written after the
lock was taken, only if it was, and is committed before anybody is told: the setting `dibs.got` of the session carries
the answer from one statement to the other, so that both travel together and are answered together.
"""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from dibs.ports.postgres_statement import Statement
from dibs.stores.postgres_grant import LAST_FENCE, MICROS, NOW

IN_LINE = "60s"
"""For so long a session stands in the server's line before it lines up anew: what a waiter that was stopped, or cut
off, can keep a place for. And for so long it keeps a snapshot, which VACUUM respects: the server takes one for every
call of a function, so no form of waiting is without it. A minute is what an ordinary report takes too; in a shorter
time waiters would change places more often."""

# The server looks after the socket of a session that stands in line: else one that was killed would stay there.
SET_UP = Statement(
    "set_up",
    """SELECT pg_backend_pid(), set_config('lock_timeout', '2s', false), set_config('statement_timeout', '0', false),
        set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
        set_config('tcp_keepalives_count', '4', false),
        CASE WHEN current_setting('server_version_num')::int >= 140000
            THEN set_config('idle_session_timeout', '0', false) END,
        CASE WHEN current_setting('server_version_num')::int >= 140000 AND version() LIKE '%linux%'
            THEN set_config('client_connection_check_interval', '2s', false) END""",
)

FORGET_GONE = Statement(
    "forget",
    """DELETE FROM dibs_advisory_waiter WHERE backend NOT IN (SELECT a.pid FROM pg_stat_get_activity(NULL) AS a)""",
)

TRY = Statement(
    "try",
    """SELECT set_config('dibs.got', CASE WHEN pg_try_advisory_lock($1::bigint) THEN $2::text ELSE '' END, false)""",
)

LINE_UP = Statement(
    "line_up",
    f"""SELECT set_config('dibs.got', $2::text || pg_advisory_lock($1::bigint)::text, false)
    FROM (SELECT set_config('lock_timeout', '{IN_LINE}', true) OFFSET 0) AS patient""",
)

UNLOCK = Statement("unlock", "SELECT pg_advisory_unlock($1::bigint)")

CANCEL = Statement("cancel", "SELECT pg_cancel_backend($1::int)")

TERMINATE = Statement("terminate", "SELECT pg_terminate_backend($1::int)")

# Not synchronous: the lock dies with the server, and the clock raises the fence over whatever it forgot.
RECORD = Statement(
    "record",
    f"""INSERT INTO dibs_advisory AS a
        (key, namespace, name, fence, token, backend, since, host, pid, login, note)
    SELECT $1::bigint, $2, $3, {MICROS}, $4, pg_backend_pid(), {NOW}, $5, $6::int, $7, $8
    FROM (SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '2s', true) OFFSET 0) AS set
    WHERE current_setting('dibs.got', true) = $4
    ON CONFLICT (key) DO UPDATE SET fence = greatest(a.fence + 1, excluded.fence), token = excluded.token,
        backend = excluded.backend, since = excluded.since, host = excluded.host, pid = excluded.pid,
        login = excluded.login, note = excluded.note
    WHERE a.namespace = excluded.namespace AND a.name = excluded.name AND a.fence < {LAST_FENCE}
    RETURNING fence""",
)

RECORD_WAITER = Statement(
    "record_waiter",
    f"""INSERT INTO dibs_advisory_waiter AS w (backend, key, since, host, pid, login, note)
    VALUES (pg_backend_pid(), $1::bigint, {NOW}, $2, $3::int, $4, $5)
    ON CONFLICT (backend) DO UPDATE SET key = excluded.key, since = excluded.since, host = excluded.host,
        pid = excluded.pid, login = excluded.login, note = excluded.note""",
)

_KEY = "(l.classid::bigint << 32 | l.objid::bigint)"

_LOCKS = """pg_locks AS l WHERE l.locktype = 'advisory' AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

HEARTBEAT = Statement(
    "heartbeat",
    f"""SELECT pg_backend_pid(), {_KEY} FROM {_LOCKS} AND l.granted AND l.pid = pg_backend_pid()
    UNION ALL SELECT pg_backend_pid(), NULL""",
)

_HELD = f"EXISTS (SELECT FROM {_LOCKS} AND l.granted AND l.pid = a.backend AND {_KEY} = a.key)"

_HOLDER = """a.name, a.fence, a.host, a.pid, a.login, a.note, extract(epoch FROM a.since)::float8, NULL"""

HOLDERS = Statement(
    "session_holders",
    f"""SELECT {_HOLDER} FROM dibs_advisory AS a JOIN (SELECT l.pid, {_KEY} AS key FROM {_LOCKS} AND l.granted) AS held
        ON held.pid = a.backend AND held.key = a.key
    WHERE a.namespace = $1 AND starts_with(a.name, $2)""",
)

LAST = Statement("last", f"SELECT {_HOLDER} FROM dibs_advisory AS a WHERE a.key = $1::bigint")

SHOW = Statement(
    "session_show",
    f"""SELECT {_HOLDER}, {_HELD}, evicted_fence, evicted_reason, evicted_by, extract(epoch FROM evicted_at)::float8
    FROM dibs_advisory AS a WHERE a.key = $1::bigint AND a.namespace = $2 AND a.name = $3""",
)

WAITERS = Statement(
    "session_waiters",
    f"""SELECT w.host, w.pid, w.login, w.note, extract(epoch FROM w.since)::float8
    FROM (SELECT l.pid FROM {_LOCKS} AND NOT l.granted AND {_KEY} = $1::bigint) AS l
        LEFT JOIN dibs_advisory_waiter AS w ON w.backend = l.pid AND w.key = $1::bigint
    ORDER BY w.since""",
)

EVICT = Statement(
    "session_evict",
    f"""UPDATE dibs_advisory AS a SET evicted_token = token, evicted_fence = fence, evicted_reason = $3,
        evicted_by = $4, evicted_at = {NOW}
    WHERE key = $1::bigint AND fence = $2::bigint AND evicted_fence IS DISTINCT FROM fence AND {_HELD}
    RETURNING backend, token""",
)

STANDS_IN_LINE = Statement(
    "stands_in_line",
    f"SELECT 1 FROM {_LOCKS} AND l.pid = $1::int AND {_KEY} = $2::bigint",
)

STILL_HELD = Statement(
    "still_held",
    f"SELECT 1 FROM {_LOCKS} AND l.granted AND l.pid = $1::int AND {_KEY} = $2::bigint",
)

EVICTED = Statement(
    "evicted",
    "SELECT evicted_token FROM dibs_advisory WHERE evicted_token = ANY ($1::text[])",
)
