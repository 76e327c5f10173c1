"""How the row of a name changes hands: the statements that take it, queue for it, and give it back.

The row carries all that decides, and whoever decides has it locked. `waiting` in it says that somebody may have a
ticket: it is set in the same transaction that writes the ticket, which locks the row, so a release that comes at the
same time waits and then sees it. That is why nobody is forgotten, and why a release without waiters looks nowhere.

Times are `clock_timestamp()`, the server's clock at the moment of use: `now()` would be when the statement began,
which may have waited for the row since.
"""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from dibs.stores.postgres.port.statement import Statement

LAST_FENCE = 2**53 - 1
"""Above this a fence would not be exact in JSON and Lua any more."""

NOW = "clock_timestamp()"

MICROS = f"(extract(epoch FROM {NOW}) * 1000000)::bigint"

RESERVED = "interval '100 ms'"
"""For so long a free lock is kept for the first in line. A first that was stopped costs the others no more."""

RESERVED_LOOKING = "interval '300 ms'"
"""The same for one that cannot be woken and has to look for itself."""

SILENT = "interval '20 s'"
"""Who has not asked again for so long is gone: a waiter asks at least every five seconds."""

NO_END_LOOK = 5
"""Seconds after which one looks again at what has no end: somebody else made it so."""


def moment(column: str) -> str:
    """A time as a number; NULL if somebody wrote ``infinity`` there."""
    return f"CASE WHEN isfinite({column}) THEN extract(epoch FROM {column})::float8 END"


def left(column: str) -> str:
    """The seconds until a time; NULL if there is none."""
    return f"CASE WHEN isfinite({column}) THEN extract(epoch FROM {column} - {NOW})::float8 END"


BROKEN_KEPT = 16
"""Tokens of those who were broken last that stand in the row of a name: each of them is to be told so."""


def was_broken(token: str, row: str) -> str:
    """Whether *token* is one of those who were broken last."""
    return f"{token} = ANY (string_to_array({row}.evicted_token, ' '))"


def broken(token: str, row: str) -> str:
    """Those who were broken last, *token* now the first of them."""
    return f"array_to_string((ARRAY[{token}] || string_to_array({row}.evicted_token, ' '))[:{BROKEN_KEPT}], ' ')"


_HOLDER = f"""l.name, l.fence, l.host, l.pid, l.login, l.note, {moment("l.since")}, {left("l.ends_at")}, l.token,
    l.token IS NOT NULL AND l.ends_at > clock_timestamp()"""

# $1 namespace $2 name $3 token $4 ttl $5 host $6 pid $7 login $8 note.
# The fence is a hybrid clock: the server's clock moves it past everything that was given out before a failover lost
# it, the row moves it past everything that was given out before the clock was set back.
TAKE = Statement(
    "take",
    f"""INSERT INTO dibs_lease AS l (namespace, name, token, fence, ends_at, since, waiting, host, pid, login, note)
    VALUES ($1, $2, $3, {MICROS}, {NOW} + $4::float8 * interval '1 second', {NOW}, false, $5, $6::int, $7, $8)
    ON CONFLICT (namespace, name) DO UPDATE SET token = excluded.token,
        fence = greatest(l.fence + 1, {MICROS}), ends_at = {NOW} + $4::float8 * interval '1 second', since = {NOW},
        host = excluded.host, pid = excluded.pid, login = excluded.login, note = excluded.note
    WHERE NOT l.waiting AND (l.token IS NULL OR l.ends_at <= {NOW}) AND l.fence < {LAST_FENCE}
    RETURNING fence""",
)

# The steps of one decision, sent as one transaction. Each statement sees what was committed when it began, and from
# the second on nobody else can change the row or queue for it.
LOCK = Statement("lock", "SELECT 1 FROM dibs_lease WHERE namespace = $1 AND name = $2 FOR UPDATE")

_TICKETS = "dibs_waiter AS w WHERE w.namespace = $1 AND w.name = $2"

LINE = f"{_TICKETS} AND w.ticket > 0"

# A ticket below 0 is no place in line. It marks a token that was given back while an ask of it may still come, which is
# then refused: see `doubt`. While there is one, the row of the name says that somebody waits, so the upsert does not
# take it, and the decision looks here.
MARKED = "EXISTS (SELECT FROM dibs_waiter WHERE token = $3 AND ticket < 0)"

GONE = f"""(w.seen_at < {NOW} - {SILENT}
    OR w.listener IS NOT NULL AND w.listener NOT IN (SELECT a.pid FROM pg_stat_get_activity(NULL) AS a))"""

# Of all names, when a client begins to listen: nobody may ever ask again for the name that a dead waiter waited for.
SWEEP_GONE = Statement(
    "sweep_gone",
    f"""DELETE FROM dibs_waiter WHERE ticket IN (
        SELECT w.ticket FROM dibs_waiter AS w WHERE {GONE} FOR UPDATE SKIP LOCKED)""",
)

STRIKE_GONE = Statement("strike", f"DELETE FROM {_TICKETS} AND w.token <> $3 AND {GONE}")

_FREE_SINCE = f"least(l.ends_at, {NOW})"

DECIDE = Statement(
    "decide",
    f"""WITH first AS (
        SELECT token, CASE WHEN channel IS NULL THEN {RESERVED_LOOKING} ELSE {RESERVED} END AS reserved
        FROM {LINE} ORDER BY ticket LIMIT 1),
    again AS (SELECT 1 FROM dibs_lease AS l WHERE namespace = $1 AND name = $2 AND token = $3 AND ends_at > {NOW}),
    taken AS (
        UPDATE dibs_lease AS l SET token = $3,
            fence = CASE WHEN EXISTS (SELECT FROM again) THEN l.fence ELSE greatest(l.fence + 1, {MICROS}) END,
            ends_at = {NOW} + $4::float8 * interval '1 second',
            since = CASE WHEN EXISTS (SELECT FROM again) THEN l.since ELSE {NOW} END,
            host = $5, pid = $6::int, login = $7, note = $8
        WHERE namespace = $1 AND name = $2 AND (EXISTS (SELECT FROM again)
            OR l.fence < {LAST_FENCE} AND (l.token IS NULL OR l.ends_at <= {NOW}) AND NOT {MARKED} AND (
                NOT EXISTS (SELECT FROM first) OR (SELECT token FROM first) = $3
                OR {_FREE_SINCE} + (SELECT reserved FROM first) <= {NOW}))
        RETURNING fence),
    struck AS (
        DELETE FROM dibs_waiter AS w WHERE EXISTS (SELECT FROM taken) AND (w.token = $3
            OR w.token = (SELECT token FROM first) AND NOT EXISTS (SELECT FROM again)))
    SELECT fence FROM taken""",
)

QUEUE = Statement(
    "queue",
    f"""INSERT INTO dibs_waiter AS w
        (namespace, name, token, channel, listener, seen_at, since, host, pid, login, note)
    SELECT $1, $2, $3, $4, $5::int, {NOW}, {NOW}, $6, $7::int, $8, $9 FROM dibs_lease AS l
    WHERE l.namespace = $1 AND l.name = $2 AND (l.token IS DISTINCT FROM $3 OR l.ends_at <= {NOW})
    ON CONFLICT (token) DO UPDATE SET seen_at = excluded.seen_at, channel = excluded.channel,
        listener = excluded.listener WHERE w.ticket > 0""",
)

# A new version of the row, written only if it says something new: what makes a release that waits for it look again.
SAY_WHO_WAITS = Statement(
    "waits",
    f"""UPDATE dibs_lease AS l SET waiting = NOT l.waiting WHERE namespace = $1 AND name = $2
        AND l.waiting <> EXISTS (SELECT FROM {_TICKETS})""",
)

ANSWER = Statement(
    "answer",
    f"""SELECT {_HOLDER}, coalesce(extract(epoch FROM greatest({_FREE_SINCE}, 'epoch') - {NOW} +
            CASE WHEN w.channel IS NULL THEN {RESERVED_LOOKING} ELSE {RESERVED} END)::float8, 0),
        w.host, w.pid, w.login, w.note, {moment("w.since")},
        (SELECT count(*) FROM (SELECT 1 FROM {LINE} AND w.ticket <
            coalesce((SELECT ticket FROM dibs_waiter WHERE token = $3), 9223372036854775807) LIMIT 32) AS ahead)
    FROM dibs_lease AS l LEFT JOIN LATERAL (SELECT * FROM {LINE} ORDER BY ticket LIMIT 1) AS w ON true
    WHERE l.namespace = $1 AND l.name = $2""",
)

# Not synchronous: a crash that forgets it leaves the lock taken until its ttl is over, which is safe.
RELEASE = Statement(
    "release",
    f"""UPDATE dibs_lease AS l SET token = NULL, ends_at = least(l.ends_at, {NOW})
    FROM (SELECT set_config('synchronous_commit', 'off', true) OFFSET 0) AS relaxed
    WHERE namespace = $1 AND name = $2 AND token = $3
    RETURNING l.ends_at >= statement_timestamp(), l.waiting""",
)

LEAVE = Statement("leave", "DELETE FROM dibs_waiter WHERE token = $1 AND ticket > 0")

# In the place of its ticket, if it has one; and marks of before that have ended are cleared away. $4 seconds.
MARK = Statement(
    "mark",
    f"""WITH over AS (DELETE FROM dibs_waiter WHERE ticket IN (
        SELECT w.ticket FROM dibs_waiter AS w WHERE w.ticket < 0 AND w.token <> $3 AND w.seen_at < {NOW} - {SILENT}
        FOR UPDATE SKIP LOCKED))
    INSERT INTO dibs_waiter AS w (ticket, namespace, name, token, seen_at, since, host, pid, login, note)
    VALUES (-nextval('dibs_waiter_ticket_seq'), $1, $2, $3, {NOW} + $4::float8 * interval '1 second' - {SILENT}, {NOW},
        '', 0, '', '')
    ON CONFLICT (token) DO UPDATE SET ticket = -abs(w.ticket), seen_at = excluded.seen_at, channel = NULL,
        listener = NULL""",
)

BE_THERE = Statement(
    "be_there",
    """INSERT INTO dibs_lease (namespace, name, fence, ends_at, since, waiting, host, pid, login, note)
    VALUES ($1, $2, 0, 'epoch', 'epoch', false, '', 0, '', '') ON CONFLICT (namespace, name) DO NOTHING""",
)

WHY_NOT = Statement(
    "why_not",
    f"SELECT token = $3, {was_broken('$3', 'l')} FROM dibs_lease AS l WHERE namespace = $1 AND name = $2",
)

# Also if several hold it: whoever left the line may have been in the way of a part. See `rows.share_sql`.
# A transaction of its own: every NOTIFY takes a lock of the whole database until its commit, and this one writes
# nothing that the disk has to confirm.
WAKE = Statement(
    "wake",
    f"""SELECT pg_notify(w.channel, w.token) FROM dibs_lease AS l,
        LATERAL (SELECT w.channel, w.token FROM {LINE} AND NOT {GONE} ORDER BY w.ticket LIMIT 1) AS w
    WHERE l.namespace = $1 AND l.name = $2 AND w.channel IS NOT NULL
        AND (l.token IS NULL OR l.token = 'several' OR l.ends_at <= {NOW})""",
)

# For those who cannot be woken, and for those near the front, whose first may stand still: it writes nothing.
LOOK = Statement(
    "look",
    f"""SELECT l.token IS NULL OR l.ends_at <= {NOW} FROM dibs_lease AS l WHERE namespace = $1 AND name = $2""",
)
