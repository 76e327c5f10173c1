"""Idempotent calls: the work of a key is done once, and whoever comes later gets what it returned.

A key is *running* while somebody holds the lease of that name, *done* when there is a record that says so, and
*failed* when there is one that says that: then the next may try. Looking at the record and taking the lease is one
step of the store, and so is writing the record and giving the lease back, where token and fence are compared. So a
finisher that wakes up after its lease had ended, when another has taken over, is refused.

What this cannot do: an effect elsewhere and the record are two steps, and a process can die between them. Then the
work is done again. `Call.commit` makes them one step where the effect is in the database of the store.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar

from dibs.core.copying import NotCopied
from dibs.core.deadline import Deadline
from dibs.core.deferred import check_async, check_blocking, done
from dibs.core.idempotent.call import Call, Codec
from dibs.core.idempotent.outcome import DONE, fingerprint_of, read
from dibs.core.lease import Lease, leave
from dibs.core.locked import Called
from dibs.core.record import finish, finish_or_leave, try_to_finish
from dibs.errors import LeaseLost, Misuse, NotAcquired, StoreUnavailable
from dibs.holder import Record
from dibs.runtime import run

if TYPE_CHECKING:
    from dibs.core.context import Context
    from dibs.core.lock import Lock

OnLost: TypeAlias = Literal["cancel", "flag"]

P = ParamSpec("P")
R = TypeVar("R")


class Idempotent(NotCopied):
    """One call that is done at most once at a time, and replayed when it was done; made by `Client.idempotent`.

    As a context manager it gives a `Call`. As a decorator it makes a new one for each call of the function.
    """

    __slots__ = ("_call", "_codec", "_context", "_fingerprint", "_keep", "_lock", "_taken")

    _instead = "call client.idempotent() for each block"

    def __init__(self, context: Context, lock: Lock, fingerprint: Any, keep: float, codec: Codec) -> None:
        self._context, self._lock, self._keep, self._codec = context, lock, keep, codec
        self._fingerprint = fingerprint
        self._call: Call | None = None
        self._taken: list[Lease] = []

    def __call__(self, func: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Decorate a function: what it returns is the result, and a later call with the same key returns that.

        Key and fingerprint are made of its arguments: ``"charge:{invoice}"``; a call whose key is the same by chance,
        made of other values, is `KeyReused`. A function that has a keyword-only
        parameter called *call* gets the `Call` in it.
        """
        check_async(func, "idempotent")
        called = self._called(func)

        @functools.wraps(func)
        async def run(*args: P.args, **kwargs: P.kwargs) -> R:
            ours = self._filled(*called.texts(args, kwargs))
            async with ours as call:
                if not call.replayed:
                    ours._returned(done(await func(*args, **called.given(kwargs, call)), func))
            return call.result  # type: ignore[no-any-return]

        return run

    async def __aenter__(self) -> Call:
        """Begin the work, or replay it.

        `NotAcquired` if somebody else is at it for longer than *timeout*, `KeyReused` if the key stands for something
        else.
        """
        if self._call is not None:
            raise Misuse(f"this block of the call {self._lock.name!r} was entered already; make a new one for each")
        call = self._call = Call(
            self._context.store, self._lock.name, fingerprint_of(self._fingerprint), self._codec, self._keep
        )
        try:
            await self._begin(call)
        except BaseException:
            if not call.replayed:
                call._drop()
            raise
        return call

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record how it ended, and give the lease back.

        `LeaseLost` if the lease was over before: the result was not recorded, and another may have done the work.
        `StoreUnavailable` if it is not known whether it was recorded.
        """
        call = self._call
        if call is None:
            raise Misuse(f"the block of the call {self._lock.name!r} is left without having been entered")
        if call.replayed:
            return
        interrupted = call.lease._disarm(exc)
        if isinstance(exc, GeneratorExit) and not self._context.runtime.blocking:
            call._drop()  # the coroutine is being closed: nothing can be awaited any more
            return
        try:
            await self._end(call, exc)
        except (LeaseLost, StoreUnavailable) as error:
            what_now = _DONE if exc is None or call._is_done() else _RETRY
            if exc is None or interrupted:
                error.add_note(what_now)
                raise
            if not call._committed:
                exc.add_note(f"the call {call.key!r} was not recorded: {error}; {what_now}")
        except Misuse as error:  # a forked child leaves the parent's block
            if exc is None:
                raise
            exc.add_note(str(error))

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when the block had not begun or was about to end: give up what it held."""
        if isinstance(error, Misuse):
            return
        call = self._call
        if call is not None and not call.replayed:
            if self._context.runtime.blocking and call._is_done() and not call._committed:
                run(try_to_finish(self._context, call.lease, call._success(), self._keep))
            call._drop()
        leave(self._taken)

    def _called(self, func: Callable[..., Any]) -> Called:
        """What key and fingerprint are made of, for a function."""
        if not (self._fingerprint is None or isinstance(self._fingerprint, str)):
            raise Misuse(
                'the fingerprint of a decorated function is made of its arguments, as in "{amount} {currency}"'
            )
        return Called(func, self._lock.name, *([] if self._fingerprint is None else [self._fingerprint]), given="call")

    def _filled(self, texts: list[str], values: list[list[str]]) -> Idempotent:
        """The same for one call of a function: *texts* are the key and the fingerprint, made of *values*.

        The values are of the fingerprint too, so that a key two calls share by chance replays nothing wrong.
        """
        old, key, fingerprint = self._lock, texts[0], [*texts[1:], values] if texts[1:] or values else None
        return Idempotent(self._context, old._renamed(key), fingerprint, self._keep, self._codec)

    def _returned(self, result: Any) -> None:
        """The function returned *result*: that is the result, unless the function has said what is."""
        if self._call is not None and not self._call._is_done():
            self._call.done(result)

    def __repr__(self) -> str:
        return f"<Idempotent {self._lock.name!r} keep={self._keep:g}>"

    async def _begin(self, call: Call) -> None:
        timeout = self._lock._timeout
        deadline = Deadline(self._context.runtime.now, timeout)
        after, before = 0, None
        while True:
            left = timeout if not timeout else deadline.left()
            found = await self._take_or_recall(call, after, left)
            if not isinstance(found, Record):
                call._begin(found, before)
                found._arm()
                return
            outcome = read(found)
            call._check_same(outcome, found.fence)
            if outcome.state == DONE:
                call._replay(outcome)
                return
            after, before = found.fence, outcome  # it failed: take the lease, unless somebody has done so since

    async def _take_or_recall(self, call: Call, after: int, timeout: float | None) -> Lease | Record:
        """As the lock does it; while another is at it, its note tells what that one is about."""
        try:
            return await self._lock._noted(call._marked(self._lock._note))._take_or_recall(after, timeout, self._taken)
        except NotAcquired as busy:
            if busy.holder is not None:
                call._check_holder(busy.holder)
            raise

    async def _end(self, call: Call, exc: BaseException | None) -> None:
        lease = call.lease
        if call._committed and exc is None:
            lease._leave()  # the caller's transaction has done both, or does when it is committed
        elif exc is None or (call._is_done() and not call._committed):
            await finish(self._context, lease, call._success(), self._keep)
        else:  # what was to be committed with the record was undone, so it is no record of a done call
            await finish_or_leave(self._context, lease, call._failure(exc), self._keep)


def idempotent_blocking(core: Idempotent, face: Callable[[Idempotent], Any], func: Callable[P, R]) -> Callable[P, R]:
    """Decorate a plain function; *face* makes a blocking block of ours."""
    check_blocking(func, "idempotent")
    called = core._called(func)

    @functools.wraps(func)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        ours = core._filled(*called.texts(args, kwargs))
        with face(ours) as call:
            if not call.replayed:
                result = func(*args, **called.given(kwargs, call))
                ours._returned(done(result, func))
        return call.result  # type: ignore[no-any-return]

    return run


_DONE = (
    "the work was done, but it may not be recorded: unless it was, the next call with this key does it again; what "
    "must not happen twice belongs into one transaction with the record (Call.commit)"
)
_RETRY = "the next call with this key tries it again"
