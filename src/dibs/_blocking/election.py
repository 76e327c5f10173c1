"""The blocking faces of an election: its terms, its blocks, and whom it elected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from dibs._blocking.faces import faces
from dibs._blocking.lease import Loss
from dibs._blocking.whole_try import whole_try
from dibs.core import election as _election
from dibs.core import leaders as _leaders
from dibs.core import leading as _leading
from dibs.core import term as _term
from dibs.core.checks import Seconds
from dibs.errors import LossReason
from dibs.holder import Leader
from dibs.runtime import run


@faces(_term.Term)
class Term:
    __slots__ = ("_core",)

    def __init__(self, core: _term.Term) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is led."""
        return self._core.name

    @property
    def candidate(self) -> str:
        """Who leads."""
        return self._core.candidate

    @property
    def fence(self) -> int:
        """The number of the term: higher for every later leader. What the resource checks."""
        return self._core.fence

    @property
    def lost(self) -> Loss:
        """Whether the term is over, as a flag: ``if term.lost``, ``term.lost.wait(1)``."""
        return Loss(self._core.lost)

    @property
    def lost_reason(self) -> LossReason | None:
        return self._core.lost_reason

    def expires_in(self) -> float:
        return self._core.expires_in()

    def check(self) -> None:
        self._core.check()

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_leading.Leading)
class Leading:
    __slots__ = ("_core",)

    def __init__(self, core: _leading.Leading) -> None:
        self._core = core

    def __enter__(self) -> Term:
        try:
            return Term(run(self._core.__aenter__()))
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


@faces(_leaders.Leaders)
class Leaders:
    __slots__ = ("_core",)

    def __init__(self, core: _leaders.Leaders) -> None:
        self._core = core

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Leader | None:
        try:
            return run(self._core.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


@faces(_election.Election)
class Election:
    def __init__(self, core: _election.Election) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is led."""
        return self._core.name

    @property
    def candidate(self) -> str:
        return self._core.candidate

    def lead(self, *, timeout: Seconds | None = None) -> Leading:
        return Leading(self._core.lead(timeout=timeout))

    def run(self, work: Callable[[Term], object]) -> None:
        try:
            run(self._core.run(_awaited(work)))
        except BaseException as error:
            self._core.abandon(error)
            raise

    def is_leader(self) -> float:
        return self._core.is_leader()

    def leader(self) -> Leader | None:
        return run(self._core.leader())

    def watch(self, *, every: Seconds | None = None) -> Leaders:
        return Leaders(self._core.watch(every=every))

    def stop(self) -> None:
        self._core.stop()

    def __repr__(self) -> str:
        return repr(self._core)


def _awaited(work: Callable[[Term], object]) -> Callable[[_term.Term], Awaitable[object]]:
    async def call(term: _term.Term) -> object:
        return work(Term(term))

    return call
