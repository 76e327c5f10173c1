"""The env.py of a project that uses Alembic and lets one process at a time migrate."""

from __future__ import annotations

import os
import time
from pathlib import Path

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from dibs.postgres import migration_lock

together = Path(os.environ["TOGETHER"])
(together / str(os.getpid())).touch()
while len(list(together.iterdir())) < 3:  # a test only: let all three begin at once
    time.sleep(0.01)

# A pooler in transaction mode has no prepared statements for us.
engine = create_engine(os.environ["DATABASE"], poolclass=NullPool, connect_args={"prepare_threshold": None})
with engine.connect() as connection, migration_lock(connection):
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
