"""The end of a client: new steps are refused, those under way come to their end, and then the store is closed.

A step is registered before it looks whether the client is closed, and closing says that it is closed before it looks at
the steps: so each is either refused or waited for. One that takes too long closes, when it ends, what it opened.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from dibs.core.deadline import Deadline
from dibs.errors import Misuse, StoreUnavailable
from dibs.stores.store import Ask

if TYPE_CHECKING:
    from dibs.core.waiters import Waiters
    from dibs.runtime import Event, Runtime
    from dibs.stores.store import Store

P = ParamSpec("P")
R = TypeVar("R")

CLOSING = 2.0
"""Seconds that closing may take."""

PATIENCE = CLOSING / 2
"""Seconds of these for which a step that is under way may go on; then what it may have is given back without it."""

AGAIN = 1.0
"""Seconds for a step that was not waited for to close what it opened."""


class State(Enum):
    """How far it is."""

    OPEN = auto()
    REFUSING = auto()
    """A signal handler has closed it; the step that it interrupted does the rest."""
    ENDING = auto()
    CLOSED = auto()


class ClosingHost(Protocol):
    """What closing needs of the client that it closes."""

    @property
    def runtime(self) -> Runtime:
        """Its clock and events."""

    @property
    def store(self) -> Store:
        """What is closed in the end."""

    @property
    def waiters(self) -> Waiters:
        """Who waits for a turn, and has to hear that it never comes."""

    async def stop(self, asks: Sequence[Ask], within: float) -> None:
        """Give back all that is held, and what *asks* may have."""


class PendingAsk:
    """A step that asks for a lock, and may wait for it: closing need not wait for that."""

    __slots__ = ()

    ask: Ask
    waits: bool
    """Whether it has been answered, and waits until it is worth asking again."""


class Closing:
    """What one client does just now, and whether it still may."""

    __slots__ = ("_current", "_ended", "_host", "_state", "_under_way", "begun")

    def __init__(self, host: ClosingHost) -> None:
        self._host, self._current = host, host.runtime.current
        self._state = State.OPEN
        self.begun = False
        """Whether it is closed, or about to be."""
        self._under_way: dict[object, object] = {}  # each with the thread or task that it is of
        self._ended: Event | None = None  # made when somebody waits for it

    @property
    def over(self) -> bool:
        """Whether all that was under way has been waited for or given back."""
        return self._state is State.CLOSED

    def refuse(self) -> None:
        """Refuse to go on if it is closed: what failed meanwhile failed for that."""
        if self.begun:
            raise Misuse("this client is closed; connect a new one")

    # --- steps ---------------------------------------------------------------------------------------------

    def begin(self, step: object) -> None:
        """*step* is under way, until `ends` of it is called, whatever comes out of this."""
        self._under_way[step] = self._current()
        if self.begun:
            self.refuse()

    def join(self, step: object) -> None:
        """The same for a step that gives something back, which is never refused."""
        self._under_way[step] = self._current()

    def ends(self, step: object) -> bool:
        """*step* is over. True if closing did not wait for it: then it has to `finish` that."""
        self._under_way.pop(step, None)
        if not self.begun:
            return False
        if self._ended is not None:
            self._ended.set()
        # Where a coroutine is being closed nothing can be awaited.
        return self._state is not State.ENDING and not isinstance(sys.exception(), GeneratorExit)

    async def do(self, step: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do one *step* of the store."""
        this = object()
        try:
            self.begin(this)
            return await step(*args, **kwargs)
        except StoreUnavailable:
            self.refuse()
            raise
        finally:
            if self.ends(this):
                await self.finish()

    async def give_back(self, step: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do one *step* of the store that gives something back, and says itself what came of it."""
        this = object()
        try:
            self.join(this)
            return await step(*args, **kwargs)
        finally:
            if self.ends(this):
                await self.finish()

    # --- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close it. In a signal handler, the step that was interrupted does what cannot be done in its middle."""
        self._state, self.begun = State.REFUSING, True
        interrupted = self._own()
        if interrupted is None or _waits(interrupted):
            await self.finish()

    async def finish(self) -> None:
        """Wait for what is under way, give back all that is held, and close the store; a late step: once more."""
        host, again = self._host, self._state is State.CLOSED
        deadline, asks = Deadline(host.runtime.now, AGAIN if again else CLOSING), list[Ask]()
        if not again:
            self._state = State.ENDING
            host.waiters.call_all()
            asks = await self._others_end(PATIENCE)
        await host.stop(asks, deadline.left())
        self._state = State.CLOSED
        if self._own() is None:
            await host.store.close()

    def forked(self) -> None:
        """In a forked child: what is under way is so in the parent."""
        self._under_way, self._ended = {}, None
        if self.begun:
            self._state = State.CLOSED

    def _own(self) -> object | None:
        """The step of this very thread, in the middle of which we are: in a signal handler."""
        me = self._current()
        return next((step for step, owner in list(self._under_way.items()) if owner is me), None)

    async def _others_end(self, within: float) -> list[Ask]:
        """Wait until the steps of others have ended, or wait themselves; return the asks that may have something."""
        deadline, me = Deadline(self._host.runtime.now, within), self._current()
        self._ended = self._host.runtime.event()
        while any(owner is not me and not _waits(step) for step, owner in list(self._under_way.items())):
            if deadline.passed():
                break
            await self._ended.wait(deadline.left())
            self._ended.clear()
        return [step.ask for step in list(self._under_way) if isinstance(step, PendingAsk)]


def _waits(step: object) -> bool:
    """Whether *step* has its answer, and waits until it is worth asking again."""
    return isinstance(step, PendingAsk) and step.waits
