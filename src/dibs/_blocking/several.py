"""The blocking faces of several locks that are taken together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from dibs._blocking.faces import faces
from dibs._blocking.lease import Lease
from dibs._blocking.whole_try import whole_try
from dibs.core import several as _several
from dibs.core.checks import Seconds
from dibs.core.lock import AS_THE_LOCK_SAYS, _AsTheLockSays
from dibs.errors import LossReason
from dibs.runtime import run


@faces(_several.LossOfAny)
class LossOfAny:
    __slots__ = ("_core",)

    def __init__(self, core: _several.LossOfAny) -> None:
        self._core = core

    @property
    def reason(self) -> LossReason | None:
        return self._core.reason

    def __bool__(self) -> bool:
        return bool(self._core)

    def is_set(self) -> bool:
        return self._core.is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        return run(self._core.wait(timeout))

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_several.Leases)
class Leases(Mapping[str, Lease]):
    __slots__ = ("_core",)

    def __init__(self, core: _several.Leases) -> None:
        self._core = core

    def __getitem__(self, name: str) -> Lease:
        return Lease(self._core[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._core)

    def __len__(self) -> int:
        return len(self._core)

    @property
    def fences(self) -> dict[str, int]:
        return self._core.fences

    @property
    def lost(self) -> LossOfAny:
        return LossOfAny(self._core.lost)

    @property
    def lost_reason(self) -> LossReason | None:
        return self._core.lost_reason

    def expires_in(self) -> float:
        return self._core.expires_in()

    def check(self) -> None:
        self._core.check()

    def renew(self) -> None:
        run(self._core.renew())

    def release(self) -> None:
        run(self._core.release())

    def __enter__(self) -> Self:
        run(self._core.__aenter__())
        return self

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


@faces(_several.Locks)
class Locks:
    __slots__ = ("_core",)

    def __init__(self, core: _several.Locks) -> None:
        self._core = core

    @property
    def names(self) -> tuple[str, ...]:
        return self._core.names

    def acquire(self, *, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS) -> Leases:
        return Leases(run(self._core.acquire(timeout=timeout)))

    def try_acquire(self) -> Leases | None:
        return _maybe_leases(run(self._core.try_acquire()))

    def __enter__(self) -> Leases:
        try:
            return Leases(run(self._core.__aenter__()))
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


def _maybe_leases(core: Any) -> Leases | None:
    return None if core is None else Leases(core)
