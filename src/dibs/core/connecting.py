"""From a URL, or a client of a driver, to a client of ours: what `connect` does in both colours."""

from __future__ import annotations

import os

from dibs.core.checks import checked_name
from dibs.core.client import Client
from dibs.errors import Misuse
from dibs.runtime import Runtime
from dibs.stores import open_client, open_store

EMBEDDED = "sqlite:"
"""The store that needs no server: a file under the user's state directory."""


def connected(url: object, namespace: str, runtime: Runtime) -> Client:
    """Make the client of the store at *url* or behind a driver's client, else at ``DIBS_URL``, else embedded."""
    space = checked_name(namespace, "namespace")
    if url is None:
        url = os.environ.get("DIBS_URL") or EMBEDDED
    if not isinstance(url, str):
        return Client(open_client(url, space, runtime), runtime)
    if ":" not in url:  # not quoted: it may have a password in it
        raise Misuse(
            "a store is named by a URL such as sqlite: or memory:; what was given (or is in DIBS_URL) is no URL"
        )
    return Client(open_store(url, space, runtime), runtime)
