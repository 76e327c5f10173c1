"""Without a lock: write only if nobody else did since the row was read, and else read and compute again."""

from dibs.errors import Changed, Deleted
from dibs.optimistic.etag import etag, if_match, if_none_match, version_in
from dibs.optimistic.retry import retry
from dibs.optimistic.versioned import Versioned

__all__ = ["Changed", "Deleted", "Versioned", "etag", "if_match", "if_none_match", "retry", "version_in"]
