"""Locks that live in a transaction of the caller's own PostgreSQL connection, and one for migrations."""

from dibs.postgres.key import Hashtext, hashtext
from dibs.postgres.migration import migration_lock
from dibs.postgres.xact import holds, xact_lock

__all__ = ["Hashtext", "hashtext", "holds", "migration_lock", "xact_lock"]
