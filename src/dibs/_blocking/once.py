"""The blocking faces of work that runs once for each slot of time, and of one run of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from dibs._blocking.block import Block
from dibs._blocking.faces import faces
from dibs._blocking.lease import Lease
from dibs.core.once import once as _once
from dibs.core.once.once import once_blocking
from dibs.runtime import run

if TYPE_CHECKING:
    from dibs.core.once.history import Past

P = ParamSpec("P")
R = TypeVar("R")


@faces(_once.Run)
class Run:
    """One slot that is this block's to run, as ``with client.once(…)`` gives it."""

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
class Once(Block):
    """What is to be run once per slot, made by `Client.once`: a block, and a decorator.

    ``with client.once(…) as run`` runs its body in one place, and raises `Skipped` everywhere else. A decorated
    function is called in one place; everywhere else the call returns None at once, and the logger ``dibs`` says why at
    level INFO.
    """

    __slots__ = ()

    _core: _once.Once

    def __init__(self, core: _once.Once) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The name that is held while a slot runs."""
        return self._core.name

    def __call__(self, func: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate a function. If it has a keyword-only parameter called *run*, it gets the `Run` in it."""
        return once_blocking(self.name, lambda: Once(self._core._again()), func)

    def history(self) -> list[Past]:
        """List the runs that are remembered, the latest last."""
        return run(self._core.history())

    def __enter__(self) -> Run:
        """Take the slot that it is now, by the store's clock; `Skipped` if it is not ours to run."""
        try:
            return Run(run(self._core.__aenter__()))
        except BaseException as error:
            self._core._abandon(error)
            raise

    def __repr__(self) -> str:
        return repr(self._core)
