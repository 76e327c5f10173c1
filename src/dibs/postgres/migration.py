"""One migration at a time: whoever comes second waits, is told who migrates, and then finds nothing to do.

The lock is held by a transaction on a connection of its own that does nothing else, so migrations may commit as often
as they like, and a pooler in transaction mode keeps the lock where it is. Who waits asks again and again instead of
standing in the server's line: a statement that waits keeps a snapshot, and CREATE INDEX CONCURRENTLY in the migration
would wait for that, for ever. A transaction that is idle under READ COMMITTED and has written nothing keeps none.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dibs.core.checks import Seconds, checked_name, checked_timeout
from dibs.errors import LeaseLost, LossReason, Misuse, NotAcquired, NotSupported
from dibs.holder import here
from dibs.ports.db.session import session_of
from dibs.postgres.key import DEFAULT_NAMESPACE
from dibs.postgres.xact import holds, take_unrecorded
from dibs.runtime.clock import boot_time

SIGN = "SELECT set_config('application_name', CAST(:who AS text), true)"

LOOK_EVERY = (0.1, 0.3)
"""Seconds, at random."""


@contextmanager
def migration_lock(
    connection: Any, *, name: str = "migration", timeout: Seconds | None = None, namespace: str = DEFAULT_NAMESPACE
) -> Iterator[None]:
    """Let one process at a time migrate; for the ``env.py`` of Alembic, around ``context.configure`` and what follows::

        with connectable.connect() as connection, dibs.postgres.migration_lock(connection):
            context.configure(connection=connection, target_metadata=target_metadata)
            with context.begin_transaction():
                context.run_migrations()

    *connection* is SQLAlchemy's; the lock is held on another one of its engine. Whoever has to wait logs who migrates,
    as ``alembic.dibs``, and after *timeout* seconds (None: never) raises `NotAcquired`. If the lock was lost in the
    middle, the end of the block raises `LeaseLost`.
    """
    patience = checked_timeout(timeout)
    checked_name(name)
    if session_of(connection).product != "postgresql":
        raise NotSupported("migration_lock is a lock of PostgreSQL; leave it out for other databases")
    with _another(connection) as lock_connection:
        _wait(lock_connection, name, patience, namespace)
        yield
        if not _still_held(lock_connection, name, namespace):
            raise LeaseLost(name, 0, LossReason.SESSION_ENDED)


@contextmanager
def _another(connection: Any) -> Iterator[Any]:
    """A second connection of the engine; what it holds ends with it."""
    with connection.engine.connect() as second:
        if second.connection.dbapi_connection is connection.connection.dbapi_connection:
            raise Misuse("the pool of this engine has a single connection; migration_lock needs one of its own")
        yield second.execution_options(isolation_level="READ COMMITTED")
        with suppress(Exception):  # if it is broken, the lock is gone, and the server undoes the rest
            second.rollback()


def _wait(connection: Any, name: str, patience: float | None, namespace: str) -> None:
    """Ask until it is ours."""
    began_at, told = boot_time(), None
    while True:
        try:
            return _try(connection, name, namespace)
        except NotAcquired as busy:
            connection.rollback()
            waited = boot_time() - began_at
            if patience is not None and waited >= patience:
                raise NotAcquired(name, busy.holder, waited) from None
            who = (busy.holder.host, busy.holder.pid) if busy.holder else None
            if busy.holder and who != told:
                told = who
                logging.getLogger("alembic.dibs").warning("waiting for another to migrate: %s", busy.holder)
            left = LOOK_EVERY[1] if patience is None else patience - waited
            time.sleep(min(left, random.uniform(*LOOK_EVERY)))


def _try(connection: Any, name: str, namespace: str) -> None:
    from sqlalchemy import text  # noqa: PLC0415 - it has a connection, so it is there

    me = here(os.getpid(), name, "")
    connection.execute(text(SIGN), {"who": f"dibs {name}: {me.user}@{me.host} pid {me.pid}"})
    take_unrecorded(connection, name, namespace)


def _still_held(connection: Any, name: str, namespace: str) -> bool:
    """Whether nobody else can have migrated meanwhile."""
    try:
        return bool(holds(connection, name, namespace=namespace))
    except Exception:  # noqa: BLE001 - a broken connection raises anything, and means no
        return False
