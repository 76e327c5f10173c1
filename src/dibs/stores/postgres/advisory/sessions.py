"""The sessions of one client: one that holds most locks, and one more for each lock that is waited for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from dibs.errors import NotSupported, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.postgres.advisory import sql
from dibs.stores.postgres.options import Options
from dibs.stores.postgres.port.connection import Line
from dibs.stores.postgres.port.dial import dial
from dibs.stores.postgres.port.errors import tables_are_gone
from dibs.stores.postgres.port.hangup import Tripwire
from dibs.stores.postgres.port.session import Session
from dibs.stores.postgres.port.source import Source
from dibs.stores.postgres.port.statement import Call, Rows, Transaction
from dibs.stores.postgres.port.turns import Turns
from dibs.stores.postgres.schema import create, hello

MOST_WAITING = 16
"""Sessions in which a client stands in line; for more names than that it asks again and again."""

SPARE = 1
"""Sessions that are kept although nothing is locked in them."""


class Sessions:
    """Opens, chooses and closes them."""

    def __init__(self, source: Source, runtime: Runtime, options: Options) -> None:
        self.source, self._runtime, self._options = source, runtime, options
        self.tripwire: Tripwire | None = None
        self.most_locks = options.max_locks
        self._begin()

    def _begin(self) -> None:
        self._all: list[Session] = []
        self._opening: Turns[bool] = Turns(self._runtime)
        self._opening.give_back(True)

    @property
    def known(self) -> list[Session]:
        """Those that are open."""
        return list(self._all)

    def have(self, key: int) -> bool:
        """Whether the lock *key* is held, or may be, in one of them."""
        for session in list(self._all):  # noqa: SIM110 - half the time of any()
            if key in session.keys and not session.waits:
                return True
        return False

    async def main(self, until: float) -> Session:
        """The one that holds most: so the others get empty."""
        session = self._fullest()
        if session is not None:
            return session
        async with self._alone(until):
            return self._fullest() or await self._open(until)

    async def spare(self, key: int, token: str, until: float) -> Session | None:
        """One in which nothing is locked, set apart to stand in line; None if there are enough of those who do."""
        async with self._alone(until):
            if sum(session.waits for session in self._all) >= MOST_WAITING:
                return None
            main = self._fullest()
            idle = [each for each in self._all if each is not main and not each.keys and _usable(each)]
            session = idle[0] if idle else await self._open(until)
            session.keys[key], session.waits = {token}, True
            return session

    async def run(self, session: Session, until: float, *transactions: Transaction) -> list[Rows]:
        """Do in *session* what may be done twice; also when somebody has dropped the tables."""
        try:
            return await session.run(until, *transactions)
        except StoreUnavailable as error:
            if session.ended or not tables_are_gone(error):
                raise
        await self.make_tables(session, until)
        return await session.run(until, *transactions)

    async def make_tables(self, session: Session, until: float) -> None:
        """Somebody dropped them while we were connected. What is locked in *session* stays locked."""
        await create(session, self.source.shown, until, (session.line.user, None))

    def trim(self) -> None:
        """Close those that are of no use."""
        idle = [session for session in self._all if not session.keys and not session.waits]
        for session in idle[1 + SPARE :]:
            self.drop(session)

    def drop(self, session: Session) -> None:
        """Close *session*: all that is locked in it is free."""
        if session in self._all:
            self._all.remove(session)
            if self.tripwire is not None:
                self.tripwire.forget(session.line.fd)
        session.close()

    def close(self) -> None:
        """Close all."""
        for session in list(self._all):
            self.drop(session)
        self.tripwire = None

    def descriptors(self) -> tuple[int, ...]:
        """The sockets in which something is locked."""
        return tuple(session.line.fd for session in self._all if session.keys and not session.ended)

    def forked(self) -> None:
        """Forget the parent's sessions."""
        for session in self._all:
            session.line.leave_to_parent()
        if self.tripwire is not None:
            self.tripwire.close()
            self.tripwire = None
        self._begin()

    # ---------------------------------------------------------------------------------------------------------

    def _fullest(self) -> Session | None:
        usable = [session for session in self._all if _usable(session)]
        return max(usable, key=lambda session: len(session.keys), default=None)

    @contextlib.asynccontextmanager
    async def _alone(self, until: float) -> AsyncIterator[None]:
        if await self._opening.take(until) is None:
            raise StoreUnavailable(self.source.shown, "another session is still being opened")
        try:
            yield
        finally:
            self._opening.give_back(True)

    async def _open(self, until: float) -> Session:
        line = Line(await dial(self.source, self._runtime, until), self.source.shown, self._runtime)
        try:
            await self._get_to_know(line, until)
            session = Session(line, self.source.shown, self._runtime)
            self._watch(line.fd)
        except OSError as exc:  # no file is left
            line.close()
            raise StoreUnavailable(self.source.shown, f"its connections cannot be watched: {exc}") from exc
        except BaseException:
            line.close()
            raise
        self._all.append(session)
        return session

    def _watch(self, fd: int) -> None:
        if self.tripwire is None and Tripwire.possible():
            self.tripwire = Tripwire()
        if self.tripwire is not None:
            self.tripwire.watch(fd)

    async def _get_to_know(self, line: Line, until: float) -> None:
        """Refuse a pooler: a lock of a session that others share locks nobody out, and stays when we are gone."""
        shown, pooler = self.source.shown, self._options.pooler
        found, [[again], _] = await hello(line, shown, pooler, until, Call(sql.SET_UP), Call(sql.HEAR))
        named_itself = line.claimed_pid == found.pid or self._options.pooler in {"session", "none"}
        if not named_itself or again[0] != str(found.pid) or self._options.pooler == "transaction":
            raise NotSupported(
                f"{self.source.shown} is reached through a pooler, and a lock of a session needs a session of its own; "
                "take postgresql:// (lease rows), which works through every pooler, or connect to the server itself, "
                "or, if the pooler gives each client a session until it leaves, add ?pooler=session to the URL"
            )
        line.pooled = False
        self.most_locks = min(self._options.max_locks, max(found.lock_table // 8, 1))


def _usable(session: Session) -> bool:
    return not session.waits and not session.ended
