"""The blocking faces of a lease and of the flag that says that it was lost."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from dibs._blocking.faces import faces
from dibs._blocking.whole_try import whole_try
from dibs.core import lease as _lease
from dibs.core import loss as _loss
from dibs.core.checks import Seconds
from dibs.errors import LossReason
from dibs.runtime import run


@faces(_loss.Loss)
class Loss:
    __slots__ = ("_core",)

    def __init__(self, core: _loss.Loss) -> None:
        self._core = core

    def __bool__(self) -> bool:
        return bool(self._core)

    def is_set(self) -> bool:
        return self._core.is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        return run(self._core.wait(timeout))

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_lease.Lease)
class Lease:
    __slots__ = ("__weakref__", "_core")

    def __init__(self, core: _lease.Lease) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is locked."""
        return self._core.name

    @property
    def token(self) -> str:
        """Proves ownership to the store. A secret."""
        return self._core.token

    @property
    def fence(self) -> int:
        """What the resource checks: higher for every later grant of the name."""
        return self._core.fence

    @property
    def ttl(self) -> float:
        """The length of the lease in seconds; each renewal extends it by so much."""
        return self._core.ttl

    @property
    def note(self) -> str:
        """What the holder said it does."""
        return self._core.note

    @property
    def lost(self) -> Loss:
        """Whether the lease was lost, as a flag: ``if lease.lost``, ``lease.lost.wait(1)``."""
        return Loss(self._core.lost)

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

    def detach(self) -> str:
        return run(self._core.detach())

    def compare(self) -> Any:
        return self._core.compare()

    def to_str(self) -> str:
        return self._core.to_str()

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
