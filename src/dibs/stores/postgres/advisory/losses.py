"""What happens when a session ends: the locks in it are lost, and the client is told which and why."""

from __future__ import annotations

from collections.abc import Callable

from dibs.errors import LossReason
from dibs.runtime import Event, Runtime
from dibs.stores.postgres.advisory.holding import AdvisoryLock
from dibs.stores.postgres.advisory.holdings import AdvisoryLocks
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.port.session import Session

LAST_WORDS = 0.1
"""Seconds in which the current user of a session that has ended may notice that."""

REMEMBERED = 10_000
"""Tokens whose loss is remembered until somebody asks."""


class AdvisoryLosses:
    """The locks of one client that ended without being given back."""

    def __init__(self, held: AdvisoryLocks, sessions: Sessions, runtime: Runtime) -> None:
        self._held, self._sessions, self._runtime = held, sessions, runtime
        self.tell: Callable[[str, str, LossReason], None] | None = None
        """Called at once with each loss: the name, the token and the reason."""
        self.begin()

    def begin(self) -> None:
        """Forget everything: nothing was lost, as in a new client."""
        self._mutex = self._runtime.mutex()
        self.reasons: dict[str, LossReason] = {}
        """Why a token lost its lock; forgotten when its owner asks."""
        self._ending: dict[Session, Event] = {}

    async def end(self, session: Session) -> None:
        """*session* is over, or has to be: close it, and tell those who have something locked in it.

        No request is needed for the reason: the server names the evicted tokens before it ends a session on purpose.
        """
        with self._mutex:
            ending = self._ending.get(session)
            if ending is None:
                mine = self._ending[session] = self._runtime.event()
        if ending is not None:
            await ending.wait(2 * LAST_WORDS)
            return
        try:
            lost = [held for held in list(self._held.all.values()) if held.session is session]
            evicted = await session.last_words(self._runtime.now() + LAST_WORDS)
            self._sessions.drop(session)
            for held in lost:
                self.lose(held, LossReason.EVICTED if held.token in evicted else LossReason.SESSION_ENDED)
        finally:
            self._ending.pop(session, None)
            mine.set()

    def lose(self, held: AdvisoryLock, reason: LossReason) -> None:
        """*held* is over."""
        self._held.drop(held.token)
        if not held.fence:
            return
        self.remember(held.token, reason)
        self.say(held.name, held.token, reason)

    def say(self, name: str, token: str, reason: LossReason) -> None:
        """Tell the client at once that *token* has lost *name*."""
        if self.tell is not None:
            self.tell(name, token, reason)

    def remember(self, token: str, reason: LossReason) -> None:
        """Keep *reason* until the owner of *token* asks for it."""
        while len(self.reasons) >= REMEMBERED:
            self.reasons.pop(next(iter(self.reasons)))
        self.reasons[token] = reason
