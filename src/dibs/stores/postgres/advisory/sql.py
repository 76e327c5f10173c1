"""The statements of session locks: the advisory lock itself, and the row that keeps its fence and says who has it.

The lock is PostgreSQL's, so it ends with the session, and no transaction takes it back. The row is written after the
lock was taken, only if it was, and is committed before anybody is told: the setting `dibs.got` of the session carries
the answer from one statement to the other, so that both travel together and are answered together.
"""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from dibs.stores.postgres.port.statement import Statement
from dibs.stores.postgres.rows.grant import LAST_FENCE, MICROS, NOW, moment

IN_LINE = "60s"
"""For so long a session stands in the server's line before it lines up anew: what a waiter that was stopped, or cut
off, can keep a place for. And for so long it keeps a snapshot, which VACUUM respects: the server takes one for every
call of a function, so no form of waiting is without it. A minute is what an ordinary report takes too; in a shorter
time waiters would change places more often."""

# The server looks after the socket of a session that stands in line: else one that was killed would stay there.
SET_UP = Statement(
    "set_up",
    """SELECT pg_backend_pid(), set_config('lock_timeout', '2s', false), set_config('tcp_user_timeout', '30000', false),
        set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
        set_config('tcp_keepalives_count', '4', false),
        CASE WHEN current_setting('server_version_num')::int >= 140000
            THEN set_config('idle_session_timeout', '0', false) END,
        CASE WHEN current_setting('server_version_num')::int >= 140000 AND version() LIKE '%linux%'
            THEN set_config('client_connection_check_interval', '2s', false) END""",
)

FORGET_GONE = Statement(
    "forget",
    """WITH there AS MATERIALIZED (SELECT a.pid FROM pg_stat_get_activity(NULL) AS a),
    shares AS (DELETE FROM dibs_advisory_share WHERE backend NOT IN (SELECT pid FROM there))
    DELETE FROM dibs_advisory_waiter WHERE backend NOT IN (SELECT pid FROM there)""",
)

FORGET_US = Statement("forget_us", "DELETE FROM dibs_advisory_waiter WHERE backend = ANY ($1::int[])")

TRY = Statement(
    "try",
    """SELECT set_config('dibs.got', CASE WHEN pg_try_advisory_lock($1::bigint) THEN $2::text ELSE '' END, false)""",
)

LINE_UP_BY = f"""SELECT set_config('dibs.got', $2::text || {{lock}}($1::bigint)::text, false)
    FROM (SELECT set_config('lock_timeout', '{IN_LINE}', true) OFFSET 0) AS patient"""

LINE_UP = Statement("line_up", LINE_UP_BY.format(lock="pg_advisory_lock"))

UNLOCK = Statement("unlock", "SELECT pg_advisory_unlock($1::bigint)")

CANCEL = Statement("cancel", "SELECT pg_cancel_backend($1::int)")

TERMINATE = Statement("terminate", "SELECT pg_terminate_backend($1::int)")

# Not synchronous: the lock dies with the server, and the clock raises the fence over whatever it forgot.
RECORDING = f"""INSERT INTO dibs_advisory AS a
        (key, namespace, name, fence, token, backend, since, host, pid, login, note)
    SELECT $1::bigint, $2, $3, {MICROS}, $4, pg_backend_pid(), {NOW}, $5, $6::int, $7, $8
    FROM (SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '2s', true) OFFSET 0) AS set
    WHERE current_setting('dibs.got', true) = $4
    ON CONFLICT (key) DO UPDATE SET fence = greatest(a.fence + 1, excluded.fence), token = excluded.token,
        backend = excluded.backend, since = excluded.since, host = excluded.host, pid = excluded.pid,
        login = excluded.login, note = excluded.note
    WHERE a.namespace = excluded.namespace AND a.name = excluded.name AND a.fence < {LAST_FENCE}
    RETURNING fence"""

RECORD = Statement("record", RECORDING)

RECORD_WAITER = Statement(
    "record_waiter",
    f"""INSERT INTO dibs_advisory_waiter AS w (backend, key, since, host, pid, login, note)
    VALUES (pg_backend_pid(), $1::bigint, {NOW}, $2, $3::int, $4, $5)
    ON CONFLICT (backend) DO UPDATE SET key = excluded.key, since = excluded.since, host = excluded.host,
        pid = excluded.pid, login = excluded.login, note = excluded.note""",
)

KEY = "(l.classid::bigint << 32 | l.objid::bigint)"

LOCKS = """pg_locks AS l WHERE l.locktype = 'advisory' AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

HEARTBEAT = Statement(
    "heartbeat",
    f"""SELECT pg_backend_pid(), {KEY}, l.mode FROM {LOCKS} AND l.granted AND l.pid = pg_backend_pid()
    UNION ALL SELECT pg_backend_pid(), NULL, NULL""",
)

# What was granted last of each name, and to each who shares it; whether it still is, `pg_locks` says. What a
# transaction wrote says who had the lock before: while it has it, nobody else sees its row.
_GRANTS = """(SELECT key, backend, token, fence, since, host, pid, login, note, 'ExclusiveLock' AS mode
        FROM dibs_advisory WHERE left(token, 5) <> 'xact '
    UNION ALL SELECT key, backend, token, fence, since, host, pid, login, note, 'ShareLock'
        FROM dibs_advisory_share) AS g"""

_HELD = f"EXISTS (SELECT FROM {LOCKS} AND l.granted AND l.mode = {{mode}} AND l.pid = g.backend AND {KEY} = g.key)"

_WHO = f"g.fence, g.host, g.pid, g.login, g.note, {moment('g.since')}, NULL"

# Each session that has the lock, and its row if it has one: it may be of a transaction, or of another program, or
# somebody deleted the row. A process that began after the row was written is another one with the same number.
_SESSIONS = f"""{_WHO}, g.token, held.pid, s.usename, host(s.client_addr), s.application_name,
        {moment("coalesce(s.xact_start, s.backend_start)")}
    FROM (SELECT l.pid, {KEY} AS key, l.mode FROM {LOCKS} AND l.granted{{which}}) AS held
        LEFT JOIN pg_stat_activity AS s ON s.pid = held.pid
        LEFT JOIN {_GRANTS} ON g.key = held.key AND g.backend = held.pid AND g.mode = held.mode
            AND coalesce(g.since >= s.backend_start, true)"""

HOLDERS = Statement(
    "session_holders",
    f"""SELECT a.name, {_SESSIONS.format(which="")} JOIN dibs_advisory AS a ON a.key = held.key
    WHERE a.namespace = $1 AND starts_with(a.name, $2)""",
)

WHO_HAS = Statement(
    "who_has",
    f"SELECT NULL, {_SESSIONS.format(which=f' AND {KEY} = $1::bigint')} ORDER BY held.mode, g.fence LIMIT 100",
)

LAST = Statement("last", f"SELECT g.name, {_WHO}, g.token FROM dibs_advisory AS g WHERE g.key = $1::bigint")

SHOW = Statement(
    "session_show",
    f"""SELECT g.name, {_WHO}, false, g.evicted_fence, g.evicted_reason, g.evicted_by, {moment("g.evicted_at")}
    FROM dibs_advisory AS g WHERE g.key = $1::bigint AND g.namespace = $2 AND g.name = $3""",
)

# $2 stands for the token of those who want to share.
WAITERS = Statement(
    "session_waiters",
    f"""SELECT w.host, w.pid, w.login, w.note, {moment("w.since")},
        CASE l.mode WHEN 'ShareLock' THEN $2::text END
    FROM (SELECT l.pid, l.mode FROM {LOCKS} AND NOT l.granted AND {KEY} = $1::bigint) AS l
        LEFT JOIN dibs_advisory_waiter AS w ON w.backend = l.pid AND w.key = $1::bigint
    ORDER BY w.since""",
)

# The row may have waited for its next grant: so its own fence is compared too.
EVICT = Statement(
    "session_evict",
    f"""UPDATE dibs_advisory AS a SET evicted_token = g.token, evicted_fence = g.fence, evicted_reason = $3,
        evicted_by = $4, evicted_at = {NOW}
    FROM {_GRANTS} WHERE a.key = $1::bigint AND g.key = $1::bigint AND g.fence = $2::bigint
        AND (g.mode = 'ShareLock' OR a.fence = g.fence) AND a.evicted_fence IS DISTINCT FROM g.fence
        AND {_HELD.format(mode="g.mode")}
    RETURNING g.backend, g.token, pg_notify('dibs_evicted', g.token)""",
)

NOT_EVICTED = Statement(
    "session_not_evicted",
    """UPDATE dibs_advisory SET evicted_token = NULL, evicted_fence = NULL, evicted_reason = NULL, evicted_by = NULL,
        evicted_at = NULL WHERE key = $1::bigint AND evicted_fence = $2::bigint""",
)

# So the session of the holder says who was broken before it ends, and nothing has to be asked then.
HEAR = Statement("hear", "LISTEN dibs_evicted")

STANDS_IN_LINE = Statement(
    "stands_in_line",
    f"SELECT 1 FROM {LOCKS} AND l.pid = $1::int AND {KEY} = $2::bigint",
)

STILL_HELD = Statement(
    "still_held",
    f"SELECT 1 FROM {LOCKS} AND l.granted AND l.pid = $1::int AND {KEY} = $2::bigint",
)
