"""How several hold a name in PostgreSQL: the statements that give out its parts, keep them and take them back.

Each who holds a part has a row in `dibs_share`. The row of the name says meanwhile, in the place of a token, that it is
``several``, and ends with the last of them: so the upsert that takes a lock, and all that looks whether it is free, is
as it was. Whoever changes a row of `dibs_share` has the row of the name locked, and every statement after that lock
sees what was committed before it.

A row with fence 0 is for the first in line, while there is room for it: until when it is kept. Which part a token
stands for is written in it.
"""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from dibs.stores.postgres.port.statement import Statement
from dibs.stores.postgres.rows.grant import (
    LAST_FENCE,
    LINE,
    MARKED,
    MICROS,
    NO_END_LOOK,
    NOW,
    RESERVED,
    RESERVED_LOOKING,
    broken,
    left,
    moment,
    was_broken,
)
from dibs.stores.postgres.rows.lease import HOLDER, LENGTHENED

_NAME = "{0}.namespace = $1 AND {0}.name = $2"

_SHARES = f"dibs_share AS s WHERE {_NAME.format('s')} AND s.fence > 0"


def _weight(token: str) -> str:
    return f"substring({token} FROM '^part-([0-9]+)of')::int"


def _slots(token: str) -> str:
    return f"substring({token} FROM '^part-[0-9]+of([0-9]+)-')::int"


# What is so just now: the row, what is taken of it, who is first in line, and whether it may come in. Also one may who
# would be told that it asks for other slots.
_STATE = f"""l AS (SELECT l.*, l.token IS NOT NULL AND l.ends_at > {NOW} AS held,
        coalesce(l.token = 'several' AND l.ends_at > {NOW}, false) AS several
    FROM dibs_lease AS l WHERE {_NAME.format("l")}),
    s AS (SELECT coalesce(sum({_weight("s.token")}), 0) AS used, min({_slots("s.token")}) AS slots,
            min(s.ends_at) AS next_end
        FROM {_SHARES} AND s.ends_at > {NOW}),
    first AS (SELECT w.*, {_weight("w.token")} AS weight, {_slots("w.token")} AS slots,
            CASE WHEN w.channel IS NULL THEN {RESERVED_LOOKING} ELSE {RESERVED} END AS reserved
        FROM {LINE} ORDER BY w.ticket LIMIT 1),
    door AS (SELECT first.token, NOT l.held OR l.several AND first.weight IS NOT NULL
            AND (first.slots <> s.slots OR s.used + first.weight <= s.slots) AS open,
        CASE WHEN kept.ends_at > {NOW} + first.reserved THEN {NOW}  -- the clock was set back
            WHEN kept.token IS NOT NULL THEN kept.ends_at
            WHEN NOT l.held THEN least(l.ends_at, {NOW}) + first.reserved END AS kept_until,
        kept.token IS NOT NULL AS called, l.held, first.reserved
        FROM l CROSS JOIN s CROSS JOIN first LEFT JOIN dibs_share AS kept
            ON {_NAME.format("kept")} AND kept.token = first.token AND kept.fence = 0)"""

# Of those whose part is over; and of all, if the name was taken or removed over their heads.
TIDY = Statement(
    "tidy",
    f"""DELETE FROM dibs_share AS s USING dibs_lease AS l WHERE {_NAME.format("s")} AND {_NAME.format("l")}
        AND s.fence > 0 AND (s.ends_at <= {NOW} OR l.token IS DISTINCT FROM 'several' OR l.ends_at <= {NOW})""",
)

# The row of the name ends with the last of them, or now.
SETTLE = Statement(
    "settle",
    f"""UPDATE dibs_lease AS l SET ends_at = coalesce(last.ends_at, least(l.ends_at, {NOW})),
        token = CASE WHEN last.ends_at IS NULL THEN NULL ELSE l.token END
    FROM (SELECT max(s.ends_at) AS ends_at FROM {_SHARES}) AS last
    WHERE {_NAME.format("l")} AND l.token = 'several' AND l.ends_at IS DISTINCT FROM last.ends_at""",
)

STRIKE_LATE = Statement(
    "strike_late",
    f"""WITH {_STATE} DELETE FROM dibs_waiter AS w USING door
    WHERE w.token = door.token AND w.token <> $3 AND door.open AND door.kept_until <= {NOW}""",
)

# $4 ttl $5 host $6 pid $7 login $8 note, as for a lock.
GRANT = Statement(
    "grant_part",
    f"""WITH {_STATE},
    again AS (UPDATE dibs_share AS s SET ends_at = {NOW} + $4::float8 * interval '1 second'
        FROM l WHERE {_NAME.format("s")} AND s.token = $3 AND s.fence > 0 AND l.several RETURNING s.fence, s.ends_at),
    taken AS (UPDATE dibs_lease AS t SET token = 'several', fence = greatest(t.fence + 1, {MICROS}), since = {NOW},
            ends_at = greatest(CASE WHEN l.several THEN t.ends_at END, {NOW} + $4::float8 * interval '1 second'),
            host = $5, pid = $6::int, login = $7, note = $8
        FROM l CROSS JOIN s WHERE {_NAME.format("t")} AND t.fence < {LAST_FENCE} AND NOT EXISTS (SELECT FROM again)
            AND NOT {MARKED}
            AND (NOT EXISTS (SELECT FROM first) OR (SELECT token FROM first) = $3)
            AND (NOT l.held OR l.several AND s.slots = {_slots("$3::text")}
                AND s.used + {_weight("$3::text")} <= s.slots)
        RETURNING t.fence),
    shared AS (INSERT INTO dibs_share AS s (namespace, name, token, fence, ends_at, since, host, pid, login, note)
        SELECT $1, $2, $3, taken.fence, {NOW} + $4::float8 * interval '1 second', {NOW}, $5, $6::int, $7, $8 FROM taken
        ON CONFLICT (namespace, name, token) DO UPDATE SET fence = excluded.fence, ends_at = excluded.ends_at,
            since = excluded.since, host = excluded.host, pid = excluded.pid, login = excluded.login,
            note = excluded.note),
    longer AS (UPDATE dibs_lease AS t SET ends_at = greatest(t.ends_at, again.ends_at) FROM again
        WHERE {_NAME.format("t")}),
    struck AS (DELETE FROM dibs_waiter AS w
        WHERE w.token = $3 AND (EXISTS (SELECT FROM taken) OR EXISTS (SELECT FROM again)))
    SELECT fence FROM taken UNION ALL SELECT fence FROM again""",
)

QUEUE = Statement(
    "queue_part",
    f"""WITH {_STATE} INSERT INTO dibs_waiter AS w
        (namespace, name, token, channel, listener, seen_at, since, host, pid, login, note)
    SELECT $1, $2, $3, $4, $5::int, {NOW}, {NOW}, $6, $7::int, $8, $9 FROM s
    WHERE NOT EXISTS (SELECT FROM {_SHARES} AND s.token = $3) AND (s.slots IS NULL OR s.slots = {_slots("$3::text")})
    ON CONFLICT (token) DO UPDATE SET seen_at = excluded.seen_at, channel = excluded.channel,
        listener = excluded.listener WHERE w.ticket > 0""",
)

FORGET_KEPT = Statement(
    "forget_kept",
    f"""DELETE FROM dibs_share AS s WHERE {_NAME.format("s")} AND s.fence = 0
        AND s.token IS DISTINCT FROM (SELECT w.token FROM {LINE} ORDER BY w.ticket LIMIT 1)""",
)

# Keep what is free for the first in line, once: it has to be called if this returns a row. Who freed all of the name
# calls the first by itself, whose time then counts from there.
KEEP = Statement(
    "keep_for_first",
    f"""WITH {_STATE} INSERT INTO dibs_share AS s
        (namespace, name, token, fence, ends_at, since, host, pid, login, note)
    SELECT $1, $2, door.token, 0, {NOW} + door.reserved, {NOW}, '', 0, '', '' FROM door
    WHERE door.open AND NOT door.called AND (door.held OR door.kept_until <= {NOW})
    ON CONFLICT (namespace, name, token) DO NOTHING RETURNING 1""",
)

ANSWER = Statement(
    "answer_part",
    f"""WITH {_STATE} SELECT {HOLDER}, l.held, l.several, s.slots,
        coalesce({left("s.next_end")}, {NO_END_LOOK}),
        coalesce(door.open AND door.token <> $3, false),
        coalesce({left("door.kept_until")}, 0),
        first.host, first.pid, first.login, first.note, {moment("first.since")},
        (SELECT count(*) FROM (SELECT 1 FROM {LINE} AND w.ticket <
            coalesce((SELECT ticket FROM dibs_waiter WHERE token = $3), 9223372036854775807) LIMIT 32) AS ahead)
    FROM l CROSS JOIN s LEFT JOIN first ON true LEFT JOIN door ON true""",
)

# See `postgres_grant.WAKE`; here only if there is room for the first.
WAKE = Statement(
    "wake_part",
    f"""SELECT pg_notify(w.channel, w.token) FROM dibs_lease AS l,
        LATERAL (SELECT w.channel, w.token FROM {LINE} ORDER BY w.ticket LIMIT 1) AS w
    WHERE {_NAME.format("l")} AND w.channel IS NOT NULL AND (l.token IS NULL OR l.ends_at <= {NOW}
        OR EXISTS (SELECT FROM dibs_share AS s WHERE {_NAME.format("s")} AND s.token = w.token AND s.fence = 0))""",
)

# For those who cannot be called, and for those near the front, whose first may stand still: it writes nothing.
LOOK = Statement(
    "look_part",
    f"""WITH {_STATE}
    SELECT door.open AND (door.token = $3 OR NOT door.called OR door.kept_until <= {NOW}) FROM door""",
)

# Not synchronous: a crash that forgets it leaves the part taken until its ttl is over, which is safe.
RELAX = Statement("relax", "SELECT set_config('synchronous_commit', 'off', true)")

GIVE_BACK = Statement(
    "give_back_part",
    f"""WITH {_STATE} DELETE FROM dibs_share AS s USING l
    WHERE {_NAME.format("s")} AND s.token = $3 AND s.fence > 0 RETURNING l.several AND s.ends_at > {NOW}""",
)

EVICT = Statement(
    "evict_part",
    f"""WITH {_STATE},
    broken AS (DELETE FROM dibs_share AS s USING l WHERE {_NAME.format("s")} AND s.fence = $3::bigint AND s.fence > 0
        AND l.several AND s.ends_at > {NOW} RETURNING s.token, s.fence)
    UPDATE dibs_lease AS t SET evicted_token = {broken("broken.token", "t")}, evicted_fence = broken.fence,
        evicted_reason = $4, evicted_by = $5, evicted_at = {NOW} FROM broken WHERE {_NAME.format("t")} RETURNING 1""",
)

# In the order of names, so that two who renew the same rows never wait for each other.
RENEW = Statement(
    "renew_parts",
    f"""WITH asked AS (
        SELECT * FROM unnest($2::text[], $3::text[], $4::bigint[], $5::float8[], $6::float8[])
            WITH ORDINALITY AS asked(name, token, fence, ttl, longest, place)),
    locked AS (
        SELECT l.name FROM dibs_lease AS l
        WHERE l.namespace = $1 AND l.name = ANY ($2::text[]) AND l.token = 'several' AND l.ends_at > {NOW}
        ORDER BY l.name FOR UPDATE),
    renewed AS (
        UPDATE dibs_share AS s SET ends_at = {LENGTHENED.format(row="s", asked="asked")}
        FROM asked JOIN locked ON locked.name = asked.name COLLATE "C"
        WHERE s.namespace = $1 AND s.name = locked.name AND s.token = asked.token COLLATE "C"
            AND s.fence = asked.fence AND s.ends_at > {NOW}
        RETURNING asked.place, s.name, s.token, s.ends_at),
    longer AS (
        UPDATE dibs_lease AS l SET ends_at = greatest(last.ends_at, others.ends_at)
        FROM (SELECT name, max(ends_at) AS ends_at FROM renewed GROUP BY name) AS last CROSS JOIN LATERAL (
            SELECT max(s.ends_at) AS ends_at FROM dibs_share AS s WHERE s.namespace = $1 AND s.name = last.name
                AND s.fence > 0 AND s.token NOT IN (SELECT token FROM renewed WHERE renewed.name = last.name)) AS others
        WHERE l.namespace = $1 AND l.name = last.name AND l.ends_at <> greatest(last.ends_at, others.ends_at))
    SELECT asked.place, renewed.place IS NOT NULL, s.token IS NOT NULL, {was_broken("asked.token", "l")}, false
    FROM asked LEFT JOIN renewed USING (place)
        LEFT JOIN dibs_lease AS l ON l.namespace = $1 AND l.name = asked.name COLLATE "C"
        LEFT JOIN dibs_share AS s ON s.namespace = $1 AND s.name = asked.name COLLATE "C"
            AND s.token = asked.token COLLATE "C" AND s.fence = asked.fence
    ORDER BY asked.place""",
)

ATTACH = Statement(
    "attach_part",
    f"""UPDATE dibs_share AS s SET host = $4, pid = $5::int, login = $6, note = $7
    WHERE {_NAME.format("s")} AND s.token = $3 AND s.fence > 0""",
)

WHO = f"s.name, s.fence, s.host, s.pid, s.login, s.note, {moment('s.since')}, {left('s.ends_at')}, s.token"

_HELD = f"s.fence > 0 AND s.ends_at > {NOW} AND l.token = 'several' AND l.ends_at > {NOW}"

HOLDERS = Statement(
    "part_holders",
    f"""SELECT {WHO} FROM dibs_share AS s JOIN dibs_lease AS l USING (namespace, name)
    WHERE namespace = $1 AND name >= $2 AND starts_with(name, $2) AND {_HELD} ORDER BY name, s.fence""",
)

SHOW = Statement(
    "show_parts",
    f"""SELECT {WHO} FROM dibs_share AS s JOIN dibs_lease AS l USING (namespace, name)
    WHERE namespace = $1 AND name = $2 AND {_HELD} ORDER BY s.fence""",
)
