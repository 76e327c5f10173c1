"""Once per slot: of all who call for a slot of a schedule, one runs it, and that is remembered.

A description, as a lock is one; each block and each call of a decorated function is one claim (see `claiming`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from dibs.core.checks import checked_length, checked_options, shown
from dibs.core.locked import Called, check_async, check_blocking
from dibs.core.outcome import shortened
from dibs.errors import LeaseLost, Misuse, Skipped, StoreUnavailable

if TYPE_CHECKING:
    from dibs.core.claiming import Claimed
    from dibs.core.client import Client
    from dibs.core.history import Past
    from dibs.core.lease import Lease
    from dibs.core.lock import Lock
    from dibs.core.slots import Schedule, Slot

P = ParamSpec("P")
R = TypeVar("R")

KEEP = 90 * 86_400.0
"""Seconds: what ran is remembered for so long after the last run, and in any case beyond the next slot."""


class Terms(NamedTuple):
    """What describes one schedule, checked."""

    name: str
    schedule: Schedule
    ttl: float
    timeout: float | None
    retries: int
    min_hold: float
    late: float | None
    keep: float
    note: str
    on_lost: str

    def lock(self, client: Client, slot: Slot) -> Lock:
        """The lock under which *slot* runs."""
        note = self.note or f"runs slot {slot.key}"[:200]
        return client.lock(self.name, ttl=self.ttl, note=note, on_lost="flag" if self.on_lost == "flag" else "cancel")

    def keep_for(self, slot: Slot) -> float:
        """How long the record is kept: at least until this slot is not asked for any more."""
        length = slot.until - slot.at if slot.until is not None and slot.at is not None else 0.0
        return max(self.keep, 2 * length + 86_400.0)


class Run:
    """One slot that is this block's to run, as ``with client.once(…)`` gives it."""

    __slots__ = ("attempt", "lease", "slot")

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


class Once:
    """What is to be run once per slot, made by `Client.once`: a block, and a decorator.

    ``with client.once(…) as run`` runs its body in one place, and raises `Skipped` everywhere else. A decorated
    function is called in one place; everywhere else the call returns None at once, and the logger ``dibs`` says why at
    level INFO.
    """

    __slots__ = ("_claimed", "_client", "_terms", "name")

    name: str
    """The name that is held while a slot runs."""

    def __init__(self, client: Client, terms: Terms) -> None:
        self._client, self._terms, self.name = client, terms, terms.name
        self._claimed: Claimed | None = None

    def __call__(self, func: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R | None]]:
        """Decorate a function. If it has a keyword-only parameter called *run*, it gets the `Run` in it."""
        check_async(func, "once")
        called = Called(func, given="run")

        @functools.wraps(func)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            began = False
            try:
                async with self.again() as run:
                    began = True
                    return await func(*args, **called.given(kwargs, run))
            except Skipped as skipped:
                if began:  # it comes out of the function
                    raise
                say(skipped)
                return None

        return call

    async def history(self) -> list[Past]:
        """List the runs that are remembered, the latest last."""
        from dibs.core.history import read  # noqa: PLC0415 - see `again`

        return list(read(await self._client.record(self.name)).runs)

    async def __aenter__(self) -> Run:
        """Take the slot that it is now, by the store's clock; `Skipped` if it is not ours to run."""
        from dibs.core.claiming import claim  # noqa: PLC0415 - it brings what costs 5 ms at start

        if self._claimed is not None:
            raise Misuse(f"this once of {self.name!r} is in use; call client.once() for each block")
        claimed = self._claimed = await claim(self._client, self._terms)
        claimed.lease.arm()
        return Run(claimed.slot.key, claimed.attempt, claimed.lease)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write down how it ended, and give the name back. `LeaseLost` if it was not ours any more."""
        claimed, self._claimed = self._claimed, None
        if claimed is None:
            raise Misuse(f"the block of once {self.name!r} is left without having been entered")
        own = None if claimed.lease.disarm(exc) else exc
        if isinstance(exc, GeneratorExit):  # the coroutine is being closed: nothing can be awaited any more
            claimed.lease.leave()
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
            claimed.lease.tell(own, f"how slot {claimed.slot.key} ended may not be on record: {error}")

    def abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when the block had not begun or was about to end: give up what it held."""
        if self._claimed is not None and not isinstance(error, Misuse):
            self._claimed.lease.leave()
            self._claimed = None

    def __repr__(self) -> str:
        return f"<Once {self.name!r}>"

    def again(self) -> Once:
        """The same, for one more block."""
        return Once(self._client, self._terms)


def once_blocking(again: Callable[[], Any], func: Callable[P, R]) -> Callable[P, R | None]:
    """Decorate a plain function; *again* makes a blocking block."""
    check_blocking(func, "once")
    called = Called(func, given="run")

    @functools.wraps(func)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        began = False
        try:  # with no ExitStack: Ctrl-C as it is about to end would leave all that is in it
            with again() as run:
                began = True
                return func(*args, **called.given(kwargs, run))
        except Skipped as skipped:
            if began:
                raise
            say(skipped)
            return None

    return call


def say(skipped: Skipped) -> None:
    """Tell whoever listens: to skip is no fault, and not silent either."""
    import logging  # noqa: PLC0415 - costs 4 ms at start

    logging.getLogger("dibs").info("%s", skipped)


def checked_terms(
    name: object,
    schedule: Schedule,
    ttl: object,
    timeout: object,
    retries: object,
    min_hold: object,
    late: object,
    keep: object,
    note: object,
    on_lost: object,
    shortest_ttl: float,
) -> Terms:
    """Return the terms if there can be such."""
    options = checked_options(name, ttl, timeout, note, None, on_lost, shortest_ttl)
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise Misuse(f"retries={shown(retries)}: it is how often a slot is started again: 0, 1, 2 …")
    return Terms(
        options.name,
        schedule,
        options.ttl,
        options.timeout,
        retries,
        0.0 if min_hold is None else checked_length(min_hold, "min_hold"),
        None if late is None else checked_length(late, "late"),
        checked_length(keep, "keep"),
        options.note,
        options.on_lost,
    )
