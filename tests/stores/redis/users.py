"""A user with exactly the rights that the docs name: what a contract does as this user, every user can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from servers.redis import RedisServer

USER, PASSWORD = "locks", "secret"


@contextmanager
def allowed(servers: Sequence[RedisServer], rules: str) -> Iterator[None]:
    """The user exists, and in the end nothing was refused that it asked for."""
    for server in servers:
        server.command("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", *rules.split())
        server.command("ACL", "LOG", "RESET")
    yield
    refused = [entry for server in servers if server.runs for entry in server.command("ACL", "LOG")]
    assert refused == []


def as_user(url: str) -> str:
    """*url* with that user in it."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{USER}:{PASSWORD}@{rest}"
