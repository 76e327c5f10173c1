"""The tables of the PostgreSQL stores, as SQL; no driver is needed to know them."""

from __future__ import annotations

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


def ddl() -> str:
    """The tables as a script for whoever may make them."""
    return "BEGIN;\n" + "".join(f"{sql};\n" for sql in TABLES) + "COMMIT;\n"
