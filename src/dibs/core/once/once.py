"""Once per slot: of all who call for a slot of a schedule, one runs it, and that is remembered.

A description, as a lock is one; each block and each call of a decorated function is one claim (see `claim`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dibs.core.copying import NotCopied
from dibs.core.deferred import check_async, check_blocking, done, title
from dibs.core.idempotent.outcome import shortened
from dibs.core.lease import leave
from dibs.core.locked import Called
from dibs.core.template import check_no_fields
from dibs.errors import LeaseLost, Misuse, Skipped, StoreUnavailable
from dibs.log import logger

if TYPE_CHECKING:
    from dibs.core.context import Context
    from dibs.core.lease import Lease
    from dibs.core.once.claim import Claimed
    from dibs.core.once.history import Past
    from dibs.core.once.options import OnceOptions

P = ParamSpec("P")
R = TypeVar("R")

KEEP = 90 * 86_400.0
"""Seconds: what ran is remembered for so long after the last run, and in any case beyond the next slot."""


class Run(NotCopied):
    """One slot that is this block's to run, as ``with client.once(…)`` gives it."""

    __slots__ = ("attempt", "lease", "slot")

    _instead = "the slot and the fence are what others may know of it"

    slot: str
    """Which slot: the moment at which it begins, in UTC, or the *slot* that was given."""
    attempt: int
    """1 for the first start of the slot; more if one before it crashed or failed."""
    lease: Lease
    """The lease under which it runs: its fence, and whether it was lost. The block gives it back."""

    def __init__(self, slot: str, attempt: int, lease: Lease) -> None:
        self.slot, self.attempt, self.lease = slot, attempt, lease

    def __repr__(self) -> str:
        return f"<Run of {self.lease.name!r}, slot {self.slot}, attempt {self.attempt}>"


class Once(NotCopied):
    """What is to be run once per slot, made by `Client.once`: a block, and a decorator.

    ``with client.once(…) as run`` runs its body in one place, and raises `Skipped` everywhere else. A decorated
    function is called in one place; everywhere else the call returns None at once, and the logger ``dibs`` says why at
    level INFO.
    """

    __slots__ = ("_claimed", "_context", "_options", "_taken", "name")

    _instead = "call client.once() for each block"

    name: str
    """The name that is held while a slot runs."""

    def __init__(self, context: Context, options: OnceOptions) -> None:
        self._context, self._options, self.name = context, options, options.name
        self._claimed: Claimed | None = None
        self._taken: list[Lease] = []

    def __call__(self, func: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R | None]]:
        """Decorate a function. If it has a keyword-only parameter called *run*, it gets the `Run` in it."""
        check_async(func, "once")
        called = _called(self.name, func)

        @functools.wraps(func)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            began = False
            try:
                async with self._again() as run:
                    began = True
                    return done(await func(*args, **called.given(kwargs, run)), func)
            except Skipped as skipped:
                if began:  # it comes out of the function
                    raise
                say(skipped)
                return None

        return call

    async def history(self) -> list[Past]:
        """List the runs that are remembered, the latest last."""
        from dibs.core.once.history import read  # noqa: PLC0415 - see `again`

        return list(read(await self._context.record(self.name)).runs)

    async def __aenter__(self) -> Run:
        """Take the slot that it is now, by the store's clock; `Skipped` if it is not ours to run."""
        from dibs.core.once.claim import claim  # noqa: PLC0415 - it brings what costs 5 ms at start

        if self._claimed is not None:
            raise Misuse(f"this once of {self.name!r} is in use; call client.once() for each block")
        claimed = self._claimed = await claim(self._context, self._options, self._taken)
        claimed.lease._arm()
        return Run(claimed.slot.key, claimed.attempt, claimed.lease)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write down how it ended, and give the name back. `LeaseLost` if it was not ours any more."""
        claimed = self._claimed
        if claimed is None:
            raise Misuse(f"the block of once {self.name!r} is left without having been entered")
        try:
            await self._end(claimed, exc)
        finally:
            self._claimed = None

    async def _end(self, claimed: Claimed, exc: BaseException | None) -> None:
        own = None if claimed.lease._disarm(exc) else exc
        if isinstance(exc, GeneratorExit):  # the coroutine is being closed: nothing can be awaited any more
            claimed.lease._leave()
            return
        try:
            await claimed.end(None if own is None else shortened(own))
        except (LeaseLost, Misuse) as error:
            with suppress(LeaseLost, Misuse):
                await claimed.lease.release()  # it is over, and from now on nobody here counts on it
            if own is None:
                raise
            own.add_note(str(error))
        except StoreUnavailable as error:
            claimed.lease._tell(own, f"how slot {claimed.slot.key} ended may not be on record: {error}")

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when the block had not begun or was about to end: give up what it held."""
        if not isinstance(error, Misuse):
            leave(self._taken)
            self._claimed = None

    def __repr__(self) -> str:
        return f"<Once {self.name!r}>"

    def _again(self) -> Once:
        """The same, for one more block."""
        return Once(self._context, self._options)


def once_blocking(name: str, again: Callable[[], Any], func: Callable[P, R]) -> Callable[P, R | None]:
    """Decorate a plain function; *again* makes a blocking block."""
    check_blocking(func, "once")
    called = _called(name, func)

    @functools.wraps(func)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        began = False
        try:  # with no ExitStack: Ctrl-C as it is about to end would leave all that is in it
            with again() as run:
                began = True
                return done(func(*args, **called.given(kwargs, run)), func)
        except Skipped as skipped:
            if began:
                raise
            say(skipped)
            return None

    return call


def _called(name: str, func: Callable[..., Any]) -> Called:
    """What is known of *func*; `Misuse` if it wants *name* to be made of its arguments."""
    called = Called(func, given="run")
    check_no_fields(name, called.parameters, title(func))
    return called


def say(skipped: Skipped) -> None:
    """Tell whoever listens: to skip is no fault, and not silent either."""
    logger().info("%s", skipped)
