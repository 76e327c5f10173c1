"""The two ways to have an advisory lock, alone or with others: what is sent to take it, await it and give it back.

A session that has a lock would be given it again, and again, whoever waits; and each time would have to be unlocked.
So those of one client who share a name have one shared lock in their session. Each of them has a row, which is written
when it is let in; who leaves and finds no other row of its session unlocks. All that is carried out in the session, in
the order in which it was sent: a row never stands for a lock that was unlocked after it was written, and whoever does
not know whether it was let in gives back by its token and harms nobody.
"""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from dibs.share import PREFIX
from dibs.stores.postgres.advisory import sql
from dibs.stores.postgres.advisory.holding import Wanted
from dibs.stores.postgres.port.statement import Call, Statement, Transaction
from dibs.stores.postgres.port.values import number
from dibs.stores.postgres.rows.grant import NOW

_OURS = f"{sql.LOCKS} AND l.granted AND l.mode = 'ShareLock' AND l.pid = pg_backend_pid() AND {sql.KEY} = $1::bigint"

# Of those whose session has ended, or was unlocked by somebody else.
TIDY = Statement(
    "tidy_shares",
    f"""DELETE FROM dibs_advisory_share AS s WHERE s.key = $1::bigint AND NOT EXISTS (SELECT FROM {sql.LOCKS}
        AND l.granted AND l.mode = 'ShareLock' AND l.pid = s.backend AND {sql.KEY} = s.key)""",
)

# The server refuses a shared lock when somebody waits for all of it, but not to a session that has the lock.
TRY = Statement(
    "try_shared",
    f"""SELECT set_config('dibs.got', CASE
        CASE WHEN now.ours THEN NOT now.awaited ELSE pg_try_advisory_lock_shared($1::bigint) END
        WHEN true THEN $2::text ELSE '' END, false)
    FROM (SELECT coalesce(bool_or(l.granted AND l.mode = 'ShareLock' AND l.pid = pg_backend_pid()), false) AS ours,
        coalesce(bool_or(NOT l.granted), false) AS awaited FROM {sql.LOCKS} AND {sql.KEY} = $1::bigint) AS now""",
)

LINE_UP = Statement("line_up_shared", sql.LINE_UP_BY.format(lock="pg_advisory_lock_shared"))

RECORD = Statement(
    "record_share",
    f"""WITH recorded AS ({sql.RECORDING})
    INSERT INTO dibs_advisory_share AS s (key, backend, token, fence, since, host, pid, login, note)
    SELECT $1::bigint, pg_backend_pid(), $4, recorded.fence, {NOW}, $5, $6::int, $7, $8 FROM recorded
    ON CONFLICT (key, backend, token) DO UPDATE SET fence = excluded.fence, since = excluded.since
    RETURNING fence""",
)

UNLOCK = Statement(
    "unlock_shared",
    f"""SELECT CASE WHEN EXISTS (SELECT FROM dibs_advisory_share AS s
            WHERE s.key = $1::bigint AND s.backend = pg_backend_pid() AND s.token <> $2)
        THEN EXISTS (SELECT FROM {_OURS}) ELSE pg_advisory_unlock_shared($1::bigint) END""",
)

FORGET = Statement(
    "forget_share",
    "DELETE FROM dibs_advisory_share WHERE key = $1::bigint AND backend = pg_backend_pid() AND token = $2",
)

# Of the tokens $2 those that are still let in by this session.
STILL_IN = Statement(
    "still_in",
    """SELECT token FROM dibs_advisory_share
    WHERE key = ANY ($1::bigint[]) AND backend = pg_backend_pid() AND token = ANY ($2::text[])""",
)


def shares(token: str) -> bool:
    """Whether *token* stands for a shared lock."""
    return token.startswith(PREFIX)


def mode(token: str) -> str:
    """What the server calls the lock that *token* has."""
    return "ShareLock" if shares(token) else "ExclusiveLock"


def taking(wanted: Wanted) -> Transaction:
    """Try the lock. The last two answers are the token if it was given, and the fence."""
    facts = wanted.facts
    key, token = facts[0], facts[3]
    if not shares(wanted.ask.token):
        return [Call(sql.TRY, (key, token)), Call(sql.RECORD, facts)]
    return [Call(TIDY, (key,)), Call(TRY, (key, token)), Call(RECORD, facts)]


def standing_in_line(wanted: Wanted) -> list[Transaction]:
    """Wait in the server's line, in a session that has nothing. The last answer is the fence."""
    facts = wanted.facts
    key, token = facts[0], facts[3]
    if not shares(wanted.ask.token):
        return [[Call(sql.LINE_UP, (key, token)), Call(sql.RECORD, facts)]]
    return [[Call(TIDY, (key,))], [Call(LINE_UP, (key, token)), Call(RECORD, facts)]]


def giving_back(key: int, token: str) -> list[Transaction]:
    """Unlock what *token* has, if it has anything. The first answer is whether it had."""
    if not shares(token):
        return [[Call(sql.UNLOCK, (number(key),))]]
    values = (number(key), token.encode())
    return [[Call(UNLOCK, values)], [Call(FORGET, values)]]  # a table that cannot be written keeps nobody out
