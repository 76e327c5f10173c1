"""The blocking faces of work that is done once for each key, and of one call of it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from dibs._blocking.faces import faces
from dibs._blocking.lease import Lease
from dibs._blocking.whole_try import whole_try
from dibs.core import call as _call
from dibs.core import idempotent as _idempotent
from dibs.core.idempotent import idempotent_blocking
from dibs.runtime import run

P = ParamSpec("P")
R = TypeVar("R")


@faces(_call.Call)
class Call:
    __slots__ = ("_core",)

    def __init__(self, core: _call.Call) -> None:
        self._core = core

    @property
    def key(self) -> str:
        """What the call is known by."""
        return self._core.key

    @property
    def replayed(self) -> bool:
        return self._core.replayed

    @property
    def result(self) -> Any:
        return self._core.result

    @property
    def lease(self) -> Lease:
        return Lease(self._core.lease)

    @property
    def fence(self) -> int:
        return self._core.fence

    @property
    def attempt(self) -> int:
        return self._core.attempt

    @property
    def last_error(self) -> str | None:
        return self._core.last_error

    def done(self, result: Any = None) -> None:
        self._core.done(result)

    def commit(self, conn: Any, result: Any = None) -> Any:
        return self._core.commit(conn, result)

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_idempotent.Idempotent)
class Idempotent:
    __slots__ = ("_core",)

    def __init__(self, core: _idempotent.Idempotent) -> None:
        self._core = core

    def __call__(self, func: Callable[P, R]) -> Callable[P, R]:
        return idempotent_blocking(self._core, Idempotent, func)

    def __enter__(self) -> Call:
        try:
            return Call(run(self._core.__aenter__()))
        except BaseException as error:
            self._core.abandon(error)
            raise

    @whole_try
    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            run(self._core.__aexit__(kind, exc, trace))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def __repr__(self) -> str:
        return repr(self._core)
