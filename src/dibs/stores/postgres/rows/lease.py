"""What happens to a lease row besides changing hands: renewed, shown, handed over, broken."""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from collections.abc import Sequence

from dibs.stores.postgres.port.statement import Statement
from dibs.stores.postgres.port.values import numbers, texts
from dibs.stores.postgres.rows.grant import GONE, LINE, NOW, broken, left, moment, was_broken
from dibs.stores.store import Claim

# It never gets shorter, unless it ends later than anybody was promised: then the clock was set back.
LENGTHENED = f"""least(greatest({{row}}.ends_at, {NOW} + {{asked}}.ttl * interval '1 second'),
            {NOW} + {{asked}}.longest * interval '1 second')"""

FOR_EVER = 10.0**9
"""Seconds: longer than any lease, and not too long for a moment of the server."""

# Rows that somebody else keeps locked are left out, and asked for one by one: else one would cost all their leases.
# In the order of names, so that two who renew the same rows never wait for each other.
_RENEW = f"""WITH asked AS (
        SELECT * FROM unnest($2::text[], $3::text[], $4::bigint[], $5::float8[], $6::float8[])
            WITH ORDINALITY AS asked(name, token, fence, ttl, longest, place)),
    locked AS (
        SELECT l.name, asked.place, asked.ttl, asked.longest FROM asked, dibs_lease AS l
        WHERE l.namespace = $1 AND l.name = asked.name COLLATE "C" AND l.token = asked.token COLLATE "C"
            AND l.fence = asked.fence
        ORDER BY l.name FOR UPDATE OF l {{skip}}),
    renewed AS (
        UPDATE dibs_lease AS l SET ends_at = {LENGTHENED.format(row="l", asked="locked")}
        FROM locked WHERE l.namespace = $1 AND l.name = locked.name AND l.ends_at > {NOW}
        RETURNING locked.place)
    SELECT asked.place, renewed.place IS NOT NULL, l.token = asked.token, {{broken}},
        l.token = asked.token AND l.fence = asked.fence AND l.ends_at > {NOW} AND locked.place IS NULL
    FROM asked LEFT JOIN renewed USING (place) LEFT JOIN locked USING (place)
        LEFT JOIN dibs_lease AS l ON l.namespace = $1 AND l.name = asked.name COLLATE "C"
    ORDER BY asked.place"""

RENEW_FREE = Statement("renew_free", _RENEW.format(skip="SKIP LOCKED", broken=was_broken("asked.token", "l")))

RENEW = Statement("renew", _RENEW.format(skip="", broken=was_broken("asked.token", "l")))

HOLDER = f"l.name, l.fence, l.host, l.pid, l.login, l.note, {moment('l.since')}, {left('l.ends_at')}"

HOLDERS = Statement(
    "holders",
    f"""SELECT {HOLDER} FROM dibs_lease AS l WHERE namespace = $1 AND name >= $2 AND starts_with(name, $2)
        AND token <> 'several' AND ends_at > {NOW} ORDER BY name""",
)

SHOW = Statement(
    "show",
    f"""SELECT {HOLDER}, token IS NOT NULL AND ends_at > {NOW}, evicted_fence, evicted_reason, evicted_by,
        {moment("evicted_at")}
    FROM dibs_lease AS l WHERE namespace = $1 AND name = $2""",
)

WAITERS = Statement(
    "waiters",
    f"""SELECT w.host, w.pid, w.login, w.note, {moment("w.since")}, w.token FROM {LINE} AND NOT {GONE}
        ORDER BY w.ticket""",
)

ATTACH = Statement(
    "attach",
    f"""UPDATE dibs_lease AS l SET host = $4, pid = $5::int, login = $6, note = $7
    WHERE namespace = $1 AND name = $2 AND token = $3 AND ends_at > {NOW}""",
)

EVICT = Statement(
    "evict",
    f"""UPDATE dibs_lease AS l SET evicted_token = {broken("token", "l")}, evicted_fence = fence, evicted_reason = $4,
        evicted_by = $5, evicted_at = {NOW}, token = NULL, ends_at = {NOW}
    WHERE namespace = $1 AND name = $2 AND fence = $3::bigint AND token <> 'several' AND ends_at > {NOW}
    RETURNING waiting""",
)


def renewing(claims: Sequence[Claim]) -> tuple[bytes, ...]:
    """The values of a renewal, after the namespace."""
    return (
        texts([claim.name for claim in claims]),
        texts([claim.token for claim in claims]),
        numbers([claim.fence for claim in claims]),
        numbers([claim.ttl for claim in claims]),
        numbers([min(claim.longest, FOR_EVER) for claim in claims]),
    )
