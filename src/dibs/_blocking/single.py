"""The blocking faces of a single lock; not `lock`, which in this package is the function."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from dibs._blocking.faces import faces
from dibs._blocking.lease import Lease
from dibs._blocking.whole_try import whole_try
from dibs.core import guarded as _guarded
from dibs.core import lock as _lock
from dibs.core.checks import Seconds
from dibs.core.lock import AS_THE_LOCK_SAYS, _AsTheLockSays
from dibs.runtime import run


@faces(_lock.Lock)
class Lock:
    __slots__ = ("_core",)

    def __init__(self, core: _lock.Lock) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is locked."""
        return self._core.name

    def acquire(self, *, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS) -> Lease:
        return Lease(run(self._core.acquire(timeout=timeout)))

    def try_acquire(self) -> Lease | None:
        return _maybe_lease(run(self._core.try_acquire()))

    def guarded(self, guard: _guarded.Guard) -> Guarded:
        return Guarded(self._core.guarded(_guarded.for_blocking(guard, self.name)))

    def __enter__(self) -> Lease:
        try:
            return Lease(run(self._core.__aenter__()))
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


@faces(_guarded.Guarded)
class Guarded:
    __slots__ = ("_core",)

    def __init__(self, core: _guarded.Guarded) -> None:
        self._core = core

    def __enter__(self) -> Lease:
        try:
            return Lease(run(self._core.__aenter__()))
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


def _maybe_lease(core: Any) -> Lease | None:
    return None if core is None else Lease(core)
