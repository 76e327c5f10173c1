"""The few connections of one client, and who may use which: any that is free, or the one that still owes an answer.

What was asked for with a token and not waited for is settled on the same connection before the next request with that
token. So a release is carried out after the grant that was cancelled, and not before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary, WeakSet

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.postgres.port.connection import Line
from dibs.stores.postgres.port.dial import dial
from dibs.stores.postgres.port.errors import tables_are_gone
from dibs.stores.postgres.port.source import Source
from dibs.stores.postgres.port.statement import Rows, Transaction
from dibs.stores.postgres.port.turns import Turns

Greet = Callable[[Line, float], Awaitable[None]]
"""What is done on each new connection before it is used."""


class Seat:
    """The right to one connection. It ends with the last who refers to it, so no interrupt keeps it."""


class Port:
    """At most *most* connections to *source*."""

    def __init__(self, source: Source, runtime: Runtime, greet: Greet, most: int) -> None:
        self.source, self._runtime, self._greet, self._most = source, runtime, greet, most
        self._begin()

    def _begin(self) -> None:
        self._mutex = self._runtime.mutex()
        self._free: Turns[Line] = Turns(self._runtime)
        self._owing: dict[str, Line] = {}
        self._lines: WeakKeyDictionary[Line, Seat] = WeakKeyDictionary()
        self._seats: WeakSet[Seat] = WeakSet()
        """Of the connections that are open or being opened."""
        self._closed = False

    async def do(self, until: float, *transactions: Transaction, token: str = "") -> list[Rows]:
        """Carry out *transactions* and return the rows of each statement; *token* says whose they are."""
        line = await self._line(until, token)
        try:
            return await line.run_bounded(until, *transactions)
        except StoreUnavailable as error:
            if line.broken or not tables_are_gone(error):
                raise
            await self._greet(line, until)  # it makes them
            return await line.run_bounded(until, *transactions)
        finally:
            self._put_back(line, token)

    async def open(self, until: float) -> Line:
        """A connection that is nobody else's; the caller closes it."""
        line = Line(await dial(self.source, self._runtime, until), self.source.shown, self._runtime)
        try:
            await self._greet(line, until)
        except BaseException:
            line.close()
            raise
        return line

    async def close(self) -> None:
        """Close them; those that are in use, when they are put back."""
        self._closed = True
        with self._mutex:
            owing, self._owing = list(self._owing.values()), {}
        for line in [*self._free.empty(), *owing]:
            self._drop(line)

    def forked(self) -> None:
        """Forget the parent's connections."""
        for line in list(self._lines):
            line.leave_to_parent()
        self._begin()

    async def _line(self, until: float, token: str) -> Line:
        if self._owing:
            with self._mutex:
                owing = self._owing.pop(token, None)
        else:
            owing = None
        if owing is not None:
            await self._settled(owing, until, token)
            return owing
        while True:
            line = await self._free.take(until, instead=self._may_open)
            if line is None and (seat := self._seat()) is not None:
                return await self._another(seat, until)
            if line is not None and line.alive():
                return line
            if line is not None:
                self._drop(line)
            elif self._runtime.now() >= until:
                raise StoreUnavailable(self.source.shown, f"all {self._most} connections of this client are busy")

    async def _settled(self, line: Line, until: float, token: str) -> None:
        try:
            settled = await line.settle(until)
        except BaseException:  # cancelled again: it goes on owing
            self._put_back(line, token)
            raise
        if not settled:
            self._drop(line)
            raise OutcomeUnknown(self.source.shown, "an earlier request with this token has not been answered")

    def _may_open(self) -> bool:
        self._reclaim()
        return len(self._seats) < self._most

    def _seat(self) -> Seat | None:
        """Count one more connection, if there may be one."""
        with self._mutex:
            if len(self._seats) >= self._most:
                return None
            seat = Seat()
            self._seats.add(seat)
            return seat

    async def _another(self, seat: Seat, until: float) -> Line:
        try:
            line = await self.open(until)
        except BaseException:
            self._give_up(seat)
            raise
        self._lines[line] = seat
        return line

    def _put_back(self, line: Line, token: str) -> None:
        if line.owes and token and not line.broken and not self._closed:
            with self._mutex:
                self._owing[token] = line
        elif line.broken or line.owes or self._closed:
            self._drop(line)
        else:
            self._free.give_back(line)

    def _reclaim(self) -> None:
        """Close those whose late answer has come, and whose token was not heard of since."""
        with self._mutex:  # so nobody takes one of them to settle it meanwhile
            for token, line in list(self._owing.items()):
                if line.heard() or line.broken:
                    del self._owing[token]
                    line.close()
                    self._seats.discard(self._lines.pop(line))

    def _drop(self, line: Line) -> None:
        seat = self._lines.pop(line, None)
        if seat is not None:
            line.close()
            self._give_up(seat)

    def _give_up(self, seat: Seat) -> None:
        with self._mutex:
            self._seats.discard(seat)
        self._free.wake()
