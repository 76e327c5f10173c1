"""Single steps of a PostgreSQL store, for tests that look at one thing: plain calls, in this thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dibs.errors import LossReason
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.share import SHARED
from dibs.stores import Ask, Busy, Claim, Grant, Store, open_store

RUNTIME = ThreadRuntime()


class Steps:
    """One client's store."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self.store: Store = open_store(url, namespace, RUNTIME)

    def ask(self, name: str = "x", *, queue: bool = False, ttl: float = 30.0, shared: bool = False) -> Ask:
        token = RUNTIME.token()
        return Ask(name, SHARED.token(token) if shared else token, ttl, "", queue)

    def grant(self, ask: Ask, within: float = 5.0) -> Grant | Busy:
        return run(self.store.grant(ask, within))

    def take(self, name: str = "x", *, ttl: float = 30.0, within: float = 5.0, shared: bool = False) -> Claim:
        ask = self.ask(name, ttl=ttl, shared=shared)
        answer = self.grant(ask, within)
        assert isinstance(answer, Grant), answer
        return Claim(name, ask.token, answer.fence, answer.ttl)

    def renew(self, *claims: Claim, within: float = 5.0) -> list[LossReason | None]:
        return run(self.store.renew(claims, within))

    def release(self, claim: Claim | Ask, within: float = 5.0) -> LossReason | None:
        return run(self.store.release(claim.name, claim.token, within))

    def wait(self, ask: Ask, busy: Busy, within: float = 5.0) -> None:
        run(self.store.wait(ask, busy, within))

    def fence(self, name: str = "x") -> int:
        return run(self.store.show(name, 5.0)).fence

    def close(self) -> None:
        run(self.store.close())


@contextmanager
def steps(url: str, namespace: str = "default") -> Iterator[Steps]:
    """A store for the length of a block."""
    client = Steps(url, namespace)
    try:
        yield client
    finally:
        client.close()
