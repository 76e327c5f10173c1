"""The env.py of a project that uses Alembic and lets one process at a time migrate."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from dibs.postgres import migration_lock

together = Path(os.environ["TOGETHER"])
(together / str(os.getpid())).touch()
while len(list(together.glob("[0-9]*"))) < 3:  # a test only: let all three begin at once
    time.sleep(0.01)


class Mark(logging.Handler):
    """Leaves a file when this process is told that it waits; a test only."""

    def emit(self, record: logging.LogRecord) -> None:
        (together / f"waits {os.getpid()}").touch()


logging.getLogger("alembic.dibs").addHandler(Mark())

# A pooler in transaction mode has no prepared statements for us.
engine = create_engine(os.environ["DATABASE"], poolclass=NullPool, connect_args={"prepare_threshold": None})
with engine.connect() as connection, migration_lock(connection):
    while len(list(together.glob("waits *"))) < 2:  # a test only: let the first not be done before the others ask
        time.sleep(0.01)
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
