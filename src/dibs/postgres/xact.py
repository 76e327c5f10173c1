"""The lock that lives and dies with the caller's own transaction, and with what that writes.

For data in one PostgreSQL database there is nothing safer: the lock and the writes are committed, or undone, in one
step, so no holder can write after it lost the lock. It has no ttl, no keeper and no client.

Why READ COMMITTED: under REPEATABLE READ and SERIALIZABLE the statement that waits for the lock takes the
transaction's snapshot *before* it waits, and what is read afterwards is from before the former holder's commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from dibs.core.checks import Seconds, checked_note, checked_timeout
from dibs.errors import Misuse, NotAcquired, NotSupported, StoreUnavailable
from dibs.holder import here
from dibs.ports.db.errors import not_allowed, not_in_time
from dibs.ports.db.session import Session, on_connection
from dibs.postgres.holder import holder_of
from dibs.postgres.key import DEFAULT_NAMESPACE, Hashtext, Target, target
from dibs.runtime.clock import boot_time
from dibs.stores.postgres.port.values import text
from dibs.stores.postgres.rows.grant import LAST_FENCE, MICROS, NOW
from dibs.stores.postgres.tables import ALONE, TABLES

# A look at the catalog itself: within a transaction `to_regclass` may go on answering what it did before.
FACTS = """SELECT current_setting('transaction_isolation'), current_setting('lock_timeout'),
    EXISTS (SELECT FROM pg_class WHERE relname = 'dibs_advisory' AND pg_table_is_visible(oid)), pg_is_in_recovery()"""

WAIT = """SELECT pg_advisory_xact_lock{shared}(CAST(:key AS bigint))
    FROM (SELECT set_config('lock_timeout', CAST(:lock_timeout AS text), true) OFFSET 0) AS patience"""

TRY = "SELECT pg_try_advisory_xact_lock{shared}(CAST(:key AS bigint))"

RESTORE = "SELECT set_config('lock_timeout', CAST(:lock_timeout AS text), true)"

LAST = "SELECT fence FROM dibs_advisory WHERE key = CAST(:key AS bigint) AND namespace = :namespace AND name = :name"

# The same row as for session locks on the name, which it excludes and is excluded by. A transaction that takes the
# lock twice has it once, and keeps its fence.
RECORD = f"""INSERT INTO dibs_advisory AS a (key, namespace, name, fence, token, backend, since, host, pid, login, note)
    SELECT CAST(:key AS bigint), CAST(:namespace AS text), CAST(:name AS text), {MICROS},
        'xact ' || txid_current() || ' ' || extract(epoch FROM transaction_timestamp()), pg_backend_pid(), {NOW},
        CAST(:host AS text), CAST(:pid AS integer), CAST(:login AS text), CAST(:note AS text)
    ON CONFLICT (key) DO UPDATE SET
        fence = CASE WHEN a.token = excluded.token THEN a.fence ELSE greatest(a.fence + 1, excluded.fence) END,
        token = excluded.token, backend = excluded.backend, since = excluded.since, host = excluded.host,
        pid = excluded.pid, login = excluded.login, note = excluded.note
    WHERE a.namespace = excluded.namespace AND a.name = excluded.name AND a.fence < {LAST_FENCE}
    RETURNING fence"""

HELD = """SELECT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
    AND l.pid = pg_backend_pid() AND (l.classid::bigint << 32 | l.objid::bigint) = CAST(:key AS bigint)
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))"""

LONGEST_MS = 2**31 - 1
"""What ``lock_timeout`` can say: 24 days."""


@on_connection
async def xact_lock(
    conn: Session,
    name: str | int | None = None,
    *,
    key: int | Hashtext | None = None,
    timeout: Seconds | None = None,
    shared: bool = False,
    namespace: str = DEFAULT_NAMESPACE,
    note: str = "",
) -> int:
    """Take the lock *name* in the transaction that *conn* is in, until it is committed or rolled back.

    Returns its fence. *conn* is a connection of psycopg (both colours), asyncpg or Django, or a Connection or Session
    of SQLAlchemy (both colours); with one for async code the call is awaited. Outside of a transaction, and in one
    that is not READ COMMITTED, it is `Misuse`. *timeout* is how long to wait: None for ever, 0 tries once; then
    `NotAcquired`, and the transaction is as it was. *shared* locks exclude only exclusive ones; theirs is the last
    fence that was given out for *name*, or 1.

    It excludes the locks of ``postgresql+advisory://`` with the same *name* and *namespace*, and goes together with
    them if both are shared. To share a lock with SQL
    of others, an int is the key itself, and ``key=hashtext("…")`` theirs.
    """
    patience, note = checked_timeout(timeout), checked_note(note)
    facts = await _facts(conn)
    lock = await target(conn, name, key, namespace)
    await _take(conn, lock, patience, facts, "_shared" if shared else "")
    return await _last_fence(conn, lock, facts) if shared else await _record(conn, lock, facts, note)


@on_connection
async def holds(
    conn: Session,
    name: str | int | None = None,
    *,
    key: int | Hashtext | None = None,
    namespace: str = DEFAULT_NAMESPACE,
) -> bool:
    """Tell whether the transaction that *conn* is in has the lock.

    It has not if it was rolled back to a savepoint from before the lock: then what is written is not protected.
    """
    _check_product(conn)
    lock = await target(conn, name, key, namespace)
    return bool((await conn.rows(HELD, key=lock.key))[0][0])


@on_connection
async def take_unrecorded(conn: Session, name: str, namespace: str) -> None:
    """Take the lock *name* if it is free, and write no row: `NotAcquired` if it is not.

    A transaction that has written nothing, and whose last statement was no query, keeps neither a transaction id nor
    a snapshot, however long it stays open: nothing in the database waits for it.
    """
    lock = await target(conn, name, None, namespace)
    await _take(conn, lock, 0, await _facts(conn), "")
    await conn.rows(
        "SELECT set_config(name, '0', true) FROM (VALUES ('transaction_timeout')) AS wanted (name) "
        "WHERE current_setting(name, true) IS NOT NULL"
    )
    await conn.rows("SET LOCAL idle_in_transaction_session_timeout = 0")


class Facts(NamedTuple):
    """What the server says of the transaction."""

    isolation: str
    lock_timeout: str
    has_table: bool
    standby: bool


async def _facts(conn: Session) -> Facts:
    """Look whether the lock can be of use in this transaction."""
    _check_product(conn)
    if not await conn.lasts():
        raise Misuse("xact_lock lasts until the transaction ends, and this connection is in none: begin one first")
    facts = Facts(*(await conn.rows(FACTS))[0])
    if facts.isolation not in {"read committed", "read uncommitted"}:
        raise Misuse(
            f"the transaction is {facts.isolation.upper()}: what it reads after it waited for the lock may be older "
            "than the lock; take it under READ COMMITTED"
        )
    if facts.standby:
        raise StoreUnavailable("postgresql:", "this server is a standby: its locks keep nobody on the primary out")
    return facts


def _check_product(conn: Session) -> None:
    if conn.product != "postgresql":
        raise NotSupported(f"xact_lock is a lock of PostgreSQL, and the connection is one of {conn.product}")


async def _take(conn: Session, lock: Target, patience: float | None, facts: Facts, shared: str) -> None:
    """Wait for it; a wait that was in vain leaves the transaction as it was."""
    began_at = boot_time()
    if patience == 0:
        taken = (await conn.rows(TRY.format(shared=shared), key=lock.key))[0][0]
    elif patience is None:
        await conn.rows(WAIT.format(shared=shared), key=lock.key, lock_timeout="0")
        await conn.rows(RESTORE, lock_timeout=facts.lock_timeout)
        taken = True
    else:
        taken = await _taken_in_time(conn, lock, patience, facts, shared)
    if not taken:
        raise NotAcquired(lock.name, await holder_of(conn, lock), boot_time() - began_at)


async def _taken_in_time(conn: Session, lock: Target, patience: float, facts: Facts, shared: str) -> bool:
    """A wait that is over aborts the transaction, so it happens after a savepoint."""
    milliseconds = str(min(max(1, round(patience * 1000)), LONGEST_MS))
    await conn.rows("SAVEPOINT dibs_xact_lock")
    try:
        await conn.rows(WAIT.format(shared=shared), key=lock.key, lock_timeout=milliseconds)
    except Exception as error:
        await _undo(conn)
        if not_in_time(error):
            return False
        raise
    await conn.rows("RELEASE SAVEPOINT dibs_xact_lock")
    await conn.rows(RESTORE, lock_timeout=facts.lock_timeout)
    return True


async def _undo(conn: Session) -> None:
    """Go back to the savepoint, unless the connection is gone: then all of the transaction is undone."""
    with suppress(Exception):
        await conn.rows("ROLLBACK TO SAVEPOINT dibs_xact_lock")
        await conn.rows("RELEASE SAVEPOINT dibs_xact_lock")


async def _record(conn: Session, lock: Target, facts: Facts, note: str) -> int:
    """Write who has the lock into its row; the fence."""
    if not facts.has_table and not await _create(conn):
        return int((await conn.rows(f"SELECT {MICROS}"))[0][0])
    me = here(os.getpid(), lock.name, note)
    with allowed("SELECT, INSERT, UPDATE"):
        found = await conn.rows(
            RECORD, **_named(lock), host=_text(me.host), pid=me.pid, login=_text(me.user), note=_text(note)
        )
    if not found:
        raise Misuse(
            f"the row of the lock {lock.name!r} in dibs_advisory is of another name with the same key, or its fence is "
            "the last there is; roll back"
        )
    return int(found[0][0])


async def _last_fence(conn: Session, lock: Target, facts: Facts) -> int:
    """The last fence that was given out; 1, which is lower than all, if there was none."""
    with allowed("SELECT"):
        found = await conn.rows(LAST, **_named(lock)) if facts.has_table else []
    return int(found[0][0]) if found else 1


async def _create(conn: Session) -> bool:
    """Make the tables of dibs, at the first use of all; in the caller's transaction, since there is no other.

    False: another transaction is about to. Nobody waits for it: it ends when its program likes, which may be this one.
    The fence is then that of the clock alone, and later ones, from the row, are above it by the clock as well.
    """
    if not (await conn.rows("SELECT pg_try_advisory_xact_lock(0, CAST(:alone AS integer))", alone=ALONE))[0][0]:
        return False
    await conn.rows("SAVEPOINT dibs_xact_lock")
    try:
        for sql in TABLES:
            await conn.rows(sql)
    except Exception as error:
        await _undo(conn)
        if not_allowed(error):
            raise StoreUnavailable(
                "postgresql:",
                "the table dibs_advisory is not there, and this user may not make it; let somebody who may run what "
                "`dibs init --sql` prints",
            ) from error
        raise
    await conn.rows("RELEASE SAVEPOINT dibs_xact_lock")
    return True


@contextmanager
def allowed(rights: str) -> Iterator[None]:
    """Say which *rights* on the table of fences the user of the connection needs, if it lacks one."""
    try:
        yield
    except Exception as error:
        if not_allowed(error):
            raise StoreUnavailable(
                "postgresql:",
                "the user of this connection may not use the table dibs_advisory, where the fences of xact_lock are; "
                f"roll back, and let the table's owner run: GRANT {rights} ON dibs_advisory TO …",
            ) from error
        raise


def _named(lock: Target) -> dict[str, object]:
    return {"key": lock.key, "namespace": _text(lock.namespace), "name": _text(lock.name)}


def _text(value: str) -> str:
    return text(value).decode()
