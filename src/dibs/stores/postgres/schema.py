"""How the tables of the PostgreSQL stores are made at the first use, and what is asked of each new connection."""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from typing import NamedTuple, Protocol

from dibs.errors import Misuse, StoreUnavailable
from dibs.stores.postgres.port.connection import Line
from dibs.stores.postgres.port.rights import GRANT
from dibs.stores.postgres.port.statement import HOSTILE, SETTLE_IN, Call, Row, Rows, Statement, Transaction
from dibs.stores.postgres.tables import ALONE, COMMENT, TABLES, VERSION

CREATE = [
    Call(
        Statement(
            "alone",
            """SELECT set_config('lock_timeout', '5s', true), set_config('default_table_access_method', 'heap', true),
                pg_advisory_xact_lock(0, $1::int)""",
        ),
        [str(ALONE).encode()],
    ),
    *(Call(Statement(f"create{number}", sql)) for number, sql in enumerate(TABLES)),
]

HELLO = Statement(
    "hello",
    f"""SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('synchronous_commit'),
        (SELECT count(to_regclass(name)) FROM unnest(ARRAY['dibs_lease', 'dibs_waiter', 'dibs_advisory',
            'dibs_advisory_waiter', 'dibs_lease_records', 'dibs_share', 'dibs_advisory_share']) AS name) = 7,
        obj_description(to_regclass('dibs_lease'), 'pg_class'), to_regclass('dibs_lease') IS NOT NULL,
        current_setting('max_locks_per_transaction')::bigint *
            (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint),
        current_user, current_schema(), current_setting('search_path'), {HOSTILE}""",
)


class Hello(NamedTuple):
    """What a server says of itself."""

    pid: int
    standby: bool
    synchronous_commit: str
    lock_table: int
    """About how many locks the whole server has room for."""


async def hello(line: Line, store: str, pooler: str, until: float, *then: Call) -> tuple[Hello, list[Rows]]:
    """Get to know the server behind a new connection, and see to it that the tables are there.

    If the session is ours alone, its settings are made what we need first. *pooler* is what the options say of that.
    *then* are done at once, in a transaction of their own; what they answered is returned too.
    """
    whose = {"": line.claimed_pid, "transaction": -1}.get(pooler, 0)
    _, [row], *answers = await line.run(until, [Call(SETTLE_IN, (b"%d" % whose,))], [Call(HELLO)], then)
    if row[5] == "t" and row[4] is None:
        # Tables are found as of now, comments as of the beginning of the statement: somebody made them in between.
        [[row]] = await line.run(until, [Call(HELLO)])
    pid, standby, commit, complete, comment, there, table, user, schema, path, hostile = row
    line.pid, line.user, line.hostile = int(pid or 0), user or "", hostile == "t"
    found = Hello(int(pid or 0), standby == "t", commit or "on", int(table or 0))
    if standby == "t":
        raise StoreUnavailable(
            store,
            "this server is a standby, which can grant no lock; name all servers in the URL, as in "
            "postgresql://host1,host2/db, and the one that may write is found",
        )
    if there == "t":
        _check(comment, store)
    elif schema is None:
        raise _nowhere(store, user, path)
    if complete != "t":
        await create(line, store, until, (user, schema))
    return found, answers


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


def _nowhere(store: str, user: str | None, path: str | None) -> StoreUnavailable:
    return StoreUnavailable(
        store,
        f"the search_path of this user ({path}) names no schema that is there and that the user may use, so the tables "
        f'of dibs can neither be found nor made; run: ALTER ROLE "{user}" SET search_path = public, or append '
        "?options=-csearch_path%3Dpublic to the URL; if it names the right one, run: GRANT USAGE ON SCHEMA … TO …",
    )


class Session(Protocol):
    """A connection, or what stands for one."""

    async def run(self, until: float, *transactions: Transaction) -> list[Rows]:
        """Carry them out."""


async def create(session: Session, store: str, until: float, who: Row) -> None:
    """Make the tables that are not there. *who* is the user, and the schema that they are made in."""
    user, schema = who
    try:
        await session.run(until, CREATE)
    except StoreUnavailable as exc:
        if getattr(exc.__cause__, "sqlstate", "") not in {"42501", "3F000"}:
            raise
        raise StoreUnavailable(
            store,
            "the tables of dibs are not there yet, and this user may not make them; either run once: "
            f'GRANT CREATE ON SCHEMA {schema or "public"} TO "{user}", or let somebody who may run what '
            "`dibs init --sql` prints, and: " + GRANT.format(user=user),
        ) from exc.__cause__
