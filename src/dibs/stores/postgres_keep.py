"""What happens to a lease row besides changing hands: renewed, shown, handed over, broken."""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from dibs.ports.postgres_statement import Statement
from dibs.stores.postgres_grant import NOW

# Rows that somebody else keeps locked are left out, and asked for one by one: else one would cost all their leases.
# In the order of names, so that two who renew the same rows never wait for each other.
_RENEW = f"""WITH asked AS (
        SELECT * FROM unnest($2::text[], $3::text[], $4::bigint[], $5::float8[])
            WITH ORDINALITY AS asked(name, token, fence, ttl, place)),
    locked AS (
        SELECT l.name, asked.place, asked.ttl FROM asked, dibs_lease AS l
        WHERE l.namespace = $1 AND l.name = asked.name COLLATE "C" AND l.token = asked.token COLLATE "C"
            AND l.fence = asked.fence
        ORDER BY l.name FOR UPDATE OF l {{skip}}),
    renewed AS (
        UPDATE dibs_lease AS l SET ends_at = greatest(l.ends_at, {NOW} + locked.ttl * interval '1 second')
        FROM locked WHERE l.namespace = $1 AND l.name = locked.name AND l.ends_at > {NOW}
        RETURNING locked.place)
    SELECT asked.place, renewed.place IS NOT NULL, l.token = asked.token, l.evicted_token = asked.token,
        l.token = asked.token AND l.fence = asked.fence AND l.ends_at > {NOW} AND locked.place IS NULL
    FROM asked LEFT JOIN renewed USING (place) LEFT JOIN locked USING (place)
        LEFT JOIN dibs_lease AS l ON l.namespace = $1 AND l.name = asked.name COLLATE "C"
    ORDER BY asked.place"""

RENEW_FREE = Statement("renew_free", _RENEW.format(skip="SKIP LOCKED"))

RENEW = Statement("renew", _RENEW.format(skip=""))

HOLDER = """l.name, l.fence, l.host, l.pid, l.login, l.note, extract(epoch FROM l.since)::float8,
    extract(epoch FROM l.ends_at - clock_timestamp())::float8"""

HOLDERS = Statement(
    "holders",
    f"""SELECT {HOLDER} FROM dibs_lease AS l WHERE namespace = $1 AND name >= $2 AND starts_with(name, $2)
        AND token <> 'several' AND ends_at > {NOW} ORDER BY name""",
)

SHOW = Statement(
    "show",
    f"""SELECT {HOLDER}, token IS NOT NULL AND ends_at > {NOW}, evicted_fence, evicted_reason, evicted_by,
        extract(epoch FROM evicted_at)::float8
    FROM dibs_lease AS l WHERE namespace = $1 AND name = $2""",
)

WAITERS = Statement(
    "waiters",
    """SELECT host, pid, login, note, extract(epoch FROM since)::float8, token FROM dibs_waiter
        WHERE namespace = $1 AND name = $2 ORDER BY ticket""",
)

ATTACH = Statement(
    "attach",
    f"""UPDATE dibs_lease AS l SET host = $4, pid = $5::int, login = $6, note = $7
    WHERE namespace = $1 AND name = $2 AND token = $3 AND ends_at > {NOW}""",
)

EVICT = Statement(
    "evict",
    f"""UPDATE dibs_lease AS l SET evicted_token = token, evicted_fence = fence, evicted_reason = $4, evicted_by = $5,
        evicted_at = {NOW}, token = NULL, ends_at = {NOW}
    WHERE namespace = $1 AND name = $2 AND fence = $3::bigint AND token <> 'several' AND ends_at > {NOW}
    RETURNING waiting""",
)
