"""What one client holds in its sessions, by token.

Two asks of one client for one name exclude each other although a session would be given its own lock again: a key is
never tried in a session that has it, or may have it, except by asks that share it; see `advisory.mode`. A request
whose answer did not come leaves its key with the session as a doubt. The next ask with the same token, or its release,
unlocks first, which ends the doubt. If the doubt lasts for the length of the ttl, the session is closed.
"""

from __future__ import annotations

from dibs.runtime import Runtime
from dibs.stores.postgres.advisory import mode
from dibs.stores.postgres.advisory.holding import AdvisoryLock, Wanted
from dibs.stores.postgres.advisory.limit import LockLimit
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.port.session import Session


class AdvisoryLocks:
    """The locks of one client, by token."""

    def __init__(self, sessions: Sessions, runtime: Runtime) -> None:
        self._sessions, self._runtime = sessions, runtime
        self.limit = LockLimit()
        self.begin()

    def begin(self) -> None:
        """Forget everything: nothing is held, as in a new client."""
        self._mutex = self._runtime.mutex()
        self.all: dict[str, AdvisoryLock] = {}
        self._joined = 0
        """How many of them have no lock of their own, but share one in their session."""
        self.limit.count(0)

    def get(self, token: str) -> AdvisoryLock | None:
        """What *token* certainly holds."""
        held = self.all.get(token)
        return held if held is not None and held.fence else None

    def may_have(self, token: str) -> bool:
        """Whether *token* may have a lock in a session that lives."""
        held = self.all.get(token)
        return held is not None and not held.session.ended

    def reserve(self, wanted: Wanted, main: Session) -> tuple[AdvisoryLock | None, bool]:
        """Where to try, and whether the lock may be ours there already; None if another ask of this client has it."""
        token = wanted.ask.token
        with self._mutex:
            if (held := self.all.get(token)) is not None:
                return held, True
            if self._another_has(wanted.key, token, main):
                return None, False
            together = main.keys.get(wanted.key)
            if together is None:
                self.limit.check(self._sessions.most_locks)
            held = self.add(wanted, main)
            if together is None:
                main.keys[wanted.key] = {token}
            else:
                together.add(token)
                self._joined += 1
            self.limit.count(len(self.all) - self._joined)
            return held, False

    def add(self, wanted: Wanted, session: Session) -> AdvisoryLock:
        """From now on *wanted* may be held in *session*: a doubt, until its fence is known."""
        held = self.all[wanted.ask.token] = AdvisoryLock(wanted, session, self._runtime.now() + wanted.ask.ttl)
        return held

    def drop(self, token: str) -> None:
        """*token* certainly has nothing any more."""
        with self._mutex:
            held = self.all.pop(token, None)
            if held is not None and token in (together := held.session.keys.get(held.key, set())):
                together.remove(token)
                if together:
                    self._joined -= 1
                else:
                    del held.session.keys[held.key]
            self.limit.count(len(self.all) - self._joined)

    def _another_has(self, key: int, token: str, main: Session) -> bool:
        """Whether the server would give *main* what another ask of this client has, or is sure to refuse it."""
        if mode.shares(token):
            return not all(map(mode.shares, main.keys.get(key, ())))
        return self._sessions.have(key)
