"""The blocking faces of work that runs once for each slot of time, and of one run of it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from dibs._blocking.faces import faces
from dibs._blocking.lease import Lease
from dibs._blocking.whole_try import whole_try
from dibs.core import once as _once
from dibs.core.once import once_blocking
from dibs.runtime import run

if TYPE_CHECKING:
    from dibs.core.history import Past

P = ParamSpec("P")
R = TypeVar("R")


@faces(_once.Run)
class Run:
    __slots__ = ("_core",)

    def __init__(self, core: _once.Run) -> None:
        self._core = core

    @property
    def slot(self) -> str:
        """Which slot: the moment at which it begins, in UTC, or the *slot* that was given."""
        return self._core.slot

    @property
    def attempt(self) -> int:
        """1 for the first start of the slot; more if one before it crashed or failed."""
        return self._core.attempt

    @property
    def lease(self) -> Lease:
        """The lease under which it runs: its fence, and whether it was lost. The block gives it back."""
        return Lease(self._core.lease)

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_once.Once)
class Once:
    __slots__ = ("_core",)

    def __init__(self, core: _once.Once) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The name that is held while a slot runs."""
        return self._core.name

    def __call__(self, func: Callable[P, R]) -> Callable[P, R | None]:
        return once_blocking(lambda: Once(self._core.again()), func)

    def history(self) -> list[Past]:
        return run(self._core.history())

    def __enter__(self) -> Run:
        try:
            return Run(run(self._core.__aenter__()))
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
