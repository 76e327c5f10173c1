"""Commits in between: an index that is made concurrently waits for every snapshot that is older."""

from __future__ import annotations

from alembic import op

revision, down_revision = "two", "one"


def upgrade() -> None:
    with op.get_context().autocommit_block():
        op.execute("CREATE INDEX CONCURRENTLY migrated_revision ON migrated (revision)")
    op.execute("INSERT INTO migrated VALUES ('two')")
