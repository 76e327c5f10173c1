"""Makes a table, slowly."""

from __future__ import annotations

from alembic import op

revision, down_revision = "one", None


def upgrade() -> None:
    op.execute("CREATE TABLE migrated (revision text NOT NULL)")
    op.execute("INSERT INTO migrated VALUES ('one')")
    op.execute("SELECT pg_sleep(0.3)")  # long enough for the others to come and wait
