"""The tables of the PostgreSQL stores, how they are made at the first use, and what is asked of each new connection."""

from __future__ import annotations

from typing import NamedTuple

from dibs.errors import Misuse, StoreUnavailable
from dibs.ports.postgres_errors import GRANT
from dibs.ports.postgres_line import Line
from dibs.ports.postgres_statement import Call, Row, Rows, Statement

VERSION = 1

COMMENT = f"dibs schema {VERSION}: locks of dibs, https://pypi.org/project/dibs/"

TABLES = (
    """CREATE TABLE IF NOT EXISTS dibs_lease (
    -- One row for each name that was ever locked with postgresql://. It is never deleted: the fence outlives all.
    namespace text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    token text COLLATE "C",           -- of the last grant; NULL when it was given back or broken
    ends_at timestamptz NOT NULL,     -- when it ends, or ended
    since timestamptz NOT NULL,
    waiting boolean NOT NULL,         -- whether somebody may have a ticket, so that a release has to look
    host text NOT NULL, pid integer NOT NULL, login text NOT NULL, note text NOT NULL,
    evicted_token text, evicted_fence bigint, evicted_reason text, evicted_by text, evicted_at timestamptz,
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 50)""",  # room on the page: an update that finds room there touches no index
    # A record is in the row of the lock, so that whoever waits for the row sees it when the row is free: what another
    # table has, a statement sees as of its beginning. The sweep finds by the index which are over.
    """ALTER TABLE dibs_lease ADD COLUMN IF NOT EXISTS record bytea, ADD COLUMN IF NOT EXISTS record_fence bigint,
    ADD COLUMN IF NOT EXISTS record_token text COLLATE "C", ADD COLUMN IF NOT EXISTS record_at timestamptz,
    ADD COLUMN IF NOT EXISTS record_ends_at timestamptz""",
    """CREATE INDEX IF NOT EXISTS dibs_lease_records ON dibs_lease (record_ends_at)
    WHERE record_ends_at IS NOT NULL""",
    """CREATE UNLOGGED TABLE IF NOT EXISTS dibs_waiter (
    -- One row for each ask that waits. Unlogged: after a crash or a failover everybody asks again anyway.
    ticket bigserial PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL UNIQUE,
    channel text,                     -- how it is woken; NULL if it looks for itself
    listener integer,                 -- the server process that listens for it
    seen_at timestamptz NOT NULL,     -- when it asked last
    since timestamptz NOT NULL,
    host text NOT NULL, pid integer NOT NULL, login text NOT NULL, note text NOT NULL
)""",
    "CREATE INDEX IF NOT EXISTS dibs_waiter_line ON dibs_waiter (namespace, name, ticket)",
    """CREATE TABLE IF NOT EXISTS dibs_share (
    -- One row for each who holds a part of a name, while the row of the name says that several do; and one, with fence
    -- 0, for the first in line, for whom what is free is kept until it ends.
    namespace text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
    token text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    ends_at timestamptz NOT NULL,
    since timestamptz NOT NULL,
    host text NOT NULL, pid integer NOT NULL, login text NOT NULL, note text NOT NULL,
    PRIMARY KEY (namespace, name, token)
)""",
    """CREATE TABLE IF NOT EXISTS dibs_advisory (
    -- One row for each name that was ever locked with postgresql+advisory://. Who really holds it, pg_locks says.
    key bigint PRIMARY KEY,           -- of the advisory lock
    namespace text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    token text COLLATE "C" NOT NULL,  -- of the last grant
    backend integer NOT NULL,         -- the server process that got it
    since timestamptz NOT NULL,
    host text NOT NULL, pid integer NOT NULL, login text NOT NULL, note text NOT NULL,
    evicted_token text, evicted_fence bigint, evicted_reason text, evicted_by text, evicted_at timestamptz
) WITH (fillfactor = 50)""",
    """CREATE UNLOGGED TABLE IF NOT EXISTS dibs_advisory_waiter (
    -- What is known of a server process that waits for an advisory lock.
    backend integer PRIMARY KEY,
    key bigint NOT NULL,
    since timestamptz NOT NULL,
    host text NOT NULL, pid integer NOT NULL, login text NOT NULL, note text NOT NULL
)""",
    """CREATE UNLOGGED TABLE IF NOT EXISTS dibs_advisory_share (
    -- One row for each who shares an advisory lock: several of one session may. Unlogged: a crash ends all sessions.
    key bigint NOT NULL,
    backend integer NOT NULL,         -- the server process that has the lock for them
    token text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    since timestamptz NOT NULL,
    host text NOT NULL, pid integer NOT NULL, login text NOT NULL, note text NOT NULL,
    PRIMARY KEY (key, backend, token)
)""",
    f"COMMENT ON TABLE dibs_lease IS '{COMMENT}'",
)

ALONE = 0x64696273  # "dibs"
"""The advisory lock under which the tables are made: its key has 32 bits, those of locks have 64."""

CREATE = [
    Call(
        Statement("alone", "SELECT set_config('lock_timeout', '5s', true), pg_advisory_xact_lock(0, $1::int)"),
        [str(ALONE).encode()],
    ),
    *(Call(Statement(f"create{number}", sql)) for number, sql in enumerate(TABLES)),
]

HELLO = Statement(
    "hello",
    """SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('synchronous_commit'),
        (SELECT count(to_regclass(name)) FROM unnest(ARRAY['dibs_lease', 'dibs_waiter', 'dibs_advisory',
            'dibs_advisory_waiter', 'dibs_lease_records', 'dibs_share', 'dibs_advisory_share']) AS name) = 7,
        obj_description(to_regclass('dibs_lease'), 'pg_class'), to_regclass('dibs_lease') IS NOT NULL,
        current_setting('max_locks_per_transaction')::bigint *
            (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint),
        current_user, current_schema()""",
)


class Hello(NamedTuple):
    """What a server says of itself."""

    pid: int
    standby: bool
    synchronous_commit: str
    lock_table: int
    """About how many locks the whole server has room for."""


async def hello(line: Line, store: str, until: float, *then: Call) -> tuple[Hello, list[Rows]]:
    """Get to know the server behind a new connection, and see to it that the tables are there.

    *then* are done at once, in a transaction of their own; what they answered is returned too.
    """
    [[row], *answers] = await line.run(until, [Call(HELLO)], then)
    if row[5] == "t" and row[4] is None:
        # Tables are found as of now, comments as of the beginning of the statement: somebody made them in between.
        [[row]] = await line.run(until, [Call(HELLO)])
    pid, standby, commit, complete, comment, there, table, user, schema = row
    found = Hello(int(pid or 0), standby == "t", commit or "on", int(table or 0))
    if standby == "t":
        raise StoreUnavailable(
            store,
            "this server is a standby, which can grant no lock; name all servers in the URL, as in "
            "postgresql://host1,host2/db, and the one that may write is found",
        )
    if there == "t":
        _check(comment, store)
    if complete != "t":
        await _create(line, store, until, (user, schema))
    line.pid = found.pid
    return found, answers


def ddl() -> str:
    """The tables as a script for whoever may make them."""
    return "BEGIN;\n" + "".join(f"{sql};\n" for sql in TABLES) + "COMMIT;\n"


def _check(comment: str | None, store: str) -> None:
    head = (comment or "").partition(":")[0]
    if head == f"dibs schema {VERSION}":
        return
    if head.startswith("dibs schema "):
        raise Misuse(
            f"the tables in {store} were made by another version of dibs (theirs is {head[12:]}, this one knows "
            f"{VERSION}): use the same version of dibs everywhere"
        )
    raise Misuse(
        f"there is a table dibs_lease in {store} that dibs did not make, or that lost its comment; if it is ours, "
        f"run: COMMENT ON TABLE dibs_lease IS '{COMMENT}'"
    )


async def _create(line: Line, store: str, until: float, who: Row) -> None:
    user, schema = who
    try:
        await line.run(until, CREATE)
    except StoreUnavailable as exc:
        if getattr(exc.__cause__, "sqlstate", "") not in {"42501", "3F000"}:
            raise
        raise StoreUnavailable(
            store,
            "the tables of dibs are not there yet, and this user may not make them; either run once: "
            f'GRANT CREATE ON SCHEMA {schema or "public"} TO "{user}", or let somebody who may run what '
            "`dibs init --sql` prints, and: " + GRANT.format(user=user),
        ) from exc.__cause__
