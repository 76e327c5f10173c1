"""The blocking faces of work that is done once for each key, and of one call of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from dibs._blocking.block import Block
from dibs._blocking.faces import faces
from dibs._blocking.lease import Lease
from dibs.core.idempotent import call as _call
from dibs.core.idempotent import idempotent as _idempotent
from dibs.core.idempotent.idempotent import idempotent_blocking
from dibs.runtime import run

P = ParamSpec("P")
R = TypeVar("R")


@faces(_call.Call)
class Call:
    """What entering an idempotent block gives: ``if not call.replayed: call.done(charge())``, then ``call.result``."""

    __slots__ = ("_core",)

    def __init__(self, core: _call.Call) -> None:
        self._core = core

    @property
    def key(self) -> str:
        """What the call is known by."""
        return self._core.key

    @property
    def replayed(self) -> bool:
        """Whether the work was done before, so that it must not be done now, and `result` is what it returned."""
        return self._core.replayed

    @property
    def result(self) -> Any:
        """What the work returned: now, or when it was done.

        `Misuse` before `done`, and on a replay if the result could not be kept at the time.
        """
        return self._core.result

    @property
    def lease(self) -> Lease:
        """The lease under which the work is done: ``call.lease.check()`` before a long step. `Misuse` on a replay."""
        return Lease(self._core.lease)

    @property
    def fence(self) -> int:
        """The fence of the lease, to pass on to what the work writes to."""
        return self._core.fence

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; on a replay, which it was. One that was killed left no trace to count."""
        return self._core.attempt

    @property
    def last_error(self) -> str | None:
        """Why the attempt before this one failed, in one line; None if none is known to have failed."""
        return self._core.last_error

    def done(self, result: Any = None) -> None:
        """The work is done, and *result* is what every later call with this key gets.

        It is written when the block ends, also if the block ends with an error after this. A result that cannot be
        written as bytes, or has too many, is `Misuse`: the work counts as done all the same, and has no result.
        """
        self._core.done(result)

    def commit(self, conn: Any, result: Any = None) -> Any:
        """Write the record in the transaction that *conn* is in, so that work and record are committed in one step.

        *conn* is your connection to the database that the store is in: of sqlite3, psycopg, asyncpg, SQLAlchemy or
        Django; with one for async code the call is awaited. Call it last, right before the commit: from here on the
        row of the key is locked. `LeaseLost` means that another may have done the work: let the error undo yours.
        """
        return self._core.commit(conn, result)

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_idempotent.Idempotent)
class Idempotent(Block):
    """One call that is done at most once at a time, and replayed when it was done; made by `Client.idempotent`.

    As a context manager it gives a `Call`. As a decorator it makes a new one for each call of the function.
    """

    __slots__ = ()

    _core: _idempotent.Idempotent

    def __init__(self, core: _idempotent.Idempotent) -> None:
        self._core = core

    def __call__(self, func: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: what it returns is the result, and a later call with the same key returns that.

        Key and fingerprint are made of its arguments: ``"charge:{invoice}"``; a call whose key is the same by chance,
        made of other values, is `KeyReused`. A function that has a keyword-only
        parameter called *call* gets the `Call` in it.
        """
        return idempotent_blocking(self._core, Idempotent, func)

    def __enter__(self) -> Call:
        """Begin the work, or replay it.

        `NotAcquired` if somebody else is at it for longer than *timeout*, `KeyReused` if the key stands for something
        else.
        """
        try:
            return Call(run(self._core.__aenter__()))
        except BaseException as error:
            self._core._abandon(error)
            raise

    def __repr__(self) -> str:
        return repr(self._core)
