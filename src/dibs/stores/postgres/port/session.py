"""One session of the server that holds advisory locks, for one request at a time, or waits for one lock."""

from __future__ import annotations

from weakref import ref

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.postgres.port.connection import Line
from dibs.stores.postgres.port.statement import Rows, Transaction
from dibs.stores.postgres.port.turns import Turns


class Turn:
    """The right to use a session. If nobody refers to it any more, an interrupt came while it was given out."""


class Session:
    """A connection and what is locked through it."""

    def __init__(self, line: Line, store: str, runtime: Runtime) -> None:
        self.line, self.pid = line, line.pid
        self.keys: dict[int, set[str]] = {}
        """Key of a lock to the token that has it, or may have it, here; to several if they share it."""
        self.waits = False
        """Whether it stands in line for a lock, or is about to: until it is called it can do nothing else."""
        self._in_line: Turn | None = None
        self.attended = False
        """Whether its waiter is in `called` just now."""
        self._mutex = runtime.mutex()
        self._store, self._runtime = store, runtime
        turn = Turn()
        self._turn, self._turns = ref(turn), Turns[Turn](runtime)
        self._turns.give_back(turn)

    @property
    def ended(self) -> bool:
        """Whether it is over, as far as we know."""
        return self.line.broken or self._turn() is None

    async def run(self, until: float, *transactions: Transaction) -> list[Rows]:
        """Carry out *transactions*, after whatever was asked before."""
        turn = self._turns.take_now() or await self._take(until)
        try:
            if not self.line.alive():
                await self._settle(until)
            return await self.line.run(until, *transactions)
        finally:
            self._turns.give_back(turn)

    async def line_up(self, until: float, *transactions: Transaction) -> None:
        """Send *transactions*, the answer of which may take for ever."""
        turn = await self._take(until)
        try:
            await self._settle(until)
            self.line.send(*transactions)
        except BaseException:
            self._turns.give_back(turn)
            raise
        self.waits, self._in_line = True, turn

    async def called(self, until: float) -> bool:
        """Wait until what `line_up` sent is answered, or never will be; False if it is not before *until*."""
        self.attended = True
        try:
            while not self.answered():
                left = until - self._runtime.now()
                if left <= 0 or not await self._runtime.readable(self.line.fd, left):
                    return self.answered()
        finally:
            self.attended = False
        return True

    def answered(self) -> bool:
        """Whether what `line_up` sent is answered, or never will be."""
        with self._mutex:  # the watch asks too, from its own thread
            return self.line.broken or self.line.heard() or self.line.broken

    async def answer(self) -> list[Rows]:
        """The answer; the session is free again."""
        try:
            return await self.line.answer(self._runtime.now())
        finally:
            self.step_out()

    async def last_words(self, until: float) -> set[str]:
        """What was told to whoever listens, up to the end of the session, which has come or is about to be made."""
        if self._in_line is not None or self._turn() is None:  # nobody will give the turn back
            return set()
        turn = self._turns.take_now() or await self._turns.take(until)
        if turn is None:
            return set()
        try:
            return self.line.last_words()
        finally:
            self._turns.give_back(turn)

    def step_out(self) -> None:
        """It does not wait any more, though its answer may still be owed."""
        self.waits = False
        turn, self._in_line = self._in_line, None
        if turn is not None:
            self._turns.give_back(turn)

    def close(self) -> None:
        """End it; the server frees its locks. Whoever wants to use it finds that out."""
        self.line.broken = True
        if self._in_line is not None or self._turn() is None:
            self.line.close()
        for turn in self._turns.empty():  # else whoever uses it just now is the last to refer to it
            self.line.close()
            self._turns.give_back(turn)

    async def _take(self, until: float) -> Turn:
        turn = await self._turns.take(self._runtime.now() if self.ended else until)
        if turn is None and self.ended:
            raise OutcomeUnknown(self._store, "the session has ended")
        if turn is None:
            raise StoreUnavailable(self._store, "the session is busy with an earlier request")
        return turn

    async def _settle(self, until: float) -> None:
        if self.line.owes and not self.line.broken and not await self.line.settle(until):
            raise OutcomeUnknown(self._store, "an earlier request has not been answered")
        if not self.line.alive():
            raise OutcomeUnknown(self._store, "the session has ended")
