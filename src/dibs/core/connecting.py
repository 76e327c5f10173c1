"""From a URL to a client: what `connect` does in both colours."""

from __future__ import annotations

import os

from dibs.core.checks import checked_name
from dibs.core.client import Client
from dibs.errors import Misuse
from dibs.runtime import Runtime
from dibs.stores import open_store

EMBEDDED = "sqlite:"
"""The store that needs no server: a file under the user's state directory."""


def connected(url: str | None, namespace: str, runtime: Runtime) -> Client:
    """Make the client of the store at *url*, else at ``DIBS_URL``, else of the embedded store."""
    if url is None:
        url = os.environ.get("DIBS_URL") or EMBEDDED
    if not isinstance(url, str) or ":" not in url:
        raise Misuse(f"a store is named by a URL such as sqlite: or memory:, not {url!r}")
    return Client(open_store(url, checked_name(namespace, "namespace"), runtime), runtime)
