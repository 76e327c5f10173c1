"""Every error dibs raises: one root, and one class for each thing a caller can do about it.

Whose fault it is: yours (`Misuse`, `NotSupported`, `GuardMissing`, `KeyReused`), nobody's (`NotAcquired`, `Changed`,
`Deleted`), the holder's to react to (`LeaseLost`, `StaleFence`), the store's (`StoreUnavailable`), or not known
(`OutcomeUnknown`).

Every error keeps its facts in `args`, so that it can be pickled and sent to another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dibs.holder import Holder


NOTICED = 0.1
"""Seconds: who was refused sooner has tried once, and not waited."""


class LossReason(StrEnum):
    """Why a lease was lost."""

    EXPIRED = "expired"
    """No renewal was confirmed in time: the store was unreachable, or this process stood still."""

    TAKEN = "taken"
    """The store says that the lease is not ours any more: it ended there, or somebody removed it."""

    SESSION_ENDED = "session ended"
    """The session that carried the lease ended at the store."""

    EVICTED = "evicted"
    """Somebody took the lock away on purpose, with `dibs evict` or `Client.evict`."""

    MAX_HOLD = "max_hold"
    """The lease reached the *max_hold* it was asked with."""

    STEPPED_DOWN = "stepped down"
    """The leader was asked to step down, with `Election.stop`."""


class DibsError(Exception):
    """The root of all dibs errors; catch it to catch them all."""


class NotAcquired(DibsError):
    """Somebody else held the lock for as long as you were willing to wait.

    Not raised when the store is broken: that is `StoreUnavailable`. Try again later, wait longer, or look at
    *holder* (`None` when it is not known, for example because it let go while we gave up). *why* says what kept the
    lock closed when nobody held it, where the store knows: Consul's lock-delay.
    """

    def __init__(self, name: str, holder: Holder | None, waited: float, why: str = "") -> None:
        super().__init__(name, holder, waited, why)
        self.name, self.holder, self.waited, self.why = name, holder, waited, why

    def __str__(self) -> str:
        nobody = self.why or "it is held by, or kept for, somebody whom the store does not name"
        who = f"held by {self.holder}" if self.holder else nobody
        after = f" after {self.waited:.2f}".rstrip("0").rstrip(".") + " s" if self.waited >= NOTICED else ""
        return f"lock {self.name!r} was not acquired{after}: {who}"


class LeaseLost(DibsError):
    """The lease ended while you believed you held the lock; somebody else may hold it now.

    Stop the work and do not write. What was written with the lease's fence can be refused by a guard. Raised by
    `Lease.check`, `Lease.renew` and `Lease.release`, and when a ``with`` block ends whose lease was lost.
    """

    def __init__(self, name: str, fence: int, reason: LossReason) -> None:
        super().__init__(name, fence, reason)
        self.name, self.fence, self.reason = name, fence, reason

    def __str__(self) -> str:
        return (
            f"the lease on {self.name!r} (fence {self.fence}) was lost: {self.reason}; "
            "stop the work, somebody else may hold the lock"
        )


class SkipReason(StrEnum):
    """Why a slot was not started."""

    ALREADY_RAN = "already ran"
    """It was run, here or elsewhere, and ended well."""

    RUNNING = "running now"
    """The name is held: this slot, or one before it, is being run."""

    NOT_DUE = "not due"
    """It is too late for the slot, too early after the last run, or the schedule has not begun."""

    GIVEN_UP = "given up"
    """It was started as often as it may be, and never ended well."""


class Skipped(DibsError):
    """There is nothing to do: the slot of a schedule is run once, and this call is not the one that runs it.

    Raised by ``with client.once(…)``, whose body then does not run; a decorated function is not called, and returns
    None. *reason* is one of `SkipReason`, *detail* says who ran it, and when. No fault: go on.
    """

    def __init__(self, name: str, slot: str, reason: SkipReason, detail: str) -> None:
        super().__init__(name, slot, reason, detail)
        self.name, self.slot, self.reason, self.detail = name, slot, reason, detail

    def __str__(self) -> str:
        return f"{self.name!r} is skipped for slot {self.slot}, {self.reason}: {self.detail}"


class StaleFence(DibsError):
    """A guard refused a write: a newer grant of the lock has already reached the resource.

    Nothing was written. The lease behind *fence* is over; *current* is the highest fence the resource has seen. If
    that is *fence* itself, the grant's own end, or a later write of it, has been seen already.
    """

    def __init__(self, name: str, fence: int, current: int) -> None:
        super().__init__(name, fence, current)
        self.name, self.fence, self.current = name, fence, current

    def __str__(self) -> str:
        seen = f"fence {self.current}" if self.current != self.fence else "a later write, or the end, of the same grant"
        return (
            f"the write with fence {self.fence} of {self.name!r} was refused: the resource has already seen {seen}; "
            "acquire the lock again before writing"
        )


class GuardMissing(DibsError):
    """A guard has nothing to compare with: its table, or the row for the name, is not there.

    Nothing was written: what was removed may have refused this fence. *missing* says what to do once, where the
    resource is created.
    """

    def __init__(self, name: str, missing: str) -> None:
        super().__init__(name, missing)
        self.name, self.missing = name, missing

    def __str__(self) -> str:
        return f"whether a fence of {self.name!r} is stale cannot be told: {self.missing}"


class Changed(DibsError):
    """Somebody else wrote the row after you had read it. Nothing was written.

    Read it again, compute again and write again, as `dibs.optimistic.retry` does.
    """

    def __init__(self, row: str, version: int, current: int) -> None:
        super().__init__(row, version, current)
        self.row, self.version, self.current = row, version, current

    def __str__(self) -> str:
        return f"{self.row} has version {self.current}, not {self.version}: somebody changed it; read it again"


class Deleted(DibsError):
    """The row that you read is not there any more. Nothing was written, and trying again does not help."""

    def __init__(self, row: str, version: int) -> None:
        super().__init__(row, version)
        self.row, self.version = row, version

    def __str__(self) -> str:
        return f"{self.row} is not there any more: it was deleted since its version {self.version} was read"


class KeyReused(DibsError):
    """The key of an idempotent call stands for another call: the fingerprint is not the one it was first used with.

    Nothing was done. A new call needs a key of its own; the same call has to send what it sent before.
    """

    def __init__(self, name: str, fence: int) -> None:
        super().__init__(name, fence)
        self.name, self.fence = name, fence

    def __str__(self) -> str:
        return (
            f"the key {self.name!r} was used before for something else (fence {self.fence}), and nothing was done: "
            "take a new key for a new call, and repeat an old one as it was"
        )


class StoreUnavailable(DibsError):
    """The store could not be reached, or it answered with an error. Nobody was found to hold the lock.

    *problem* says what happened; *causes* has the error of each node where a store has several. Nothing is left
    behind that does not end by itself within the ttl.
    """

    def __init__(self, store: str, problem: str, causes: Mapping[str, BaseException] | None = None) -> None:
        super().__init__(store, problem, dict(causes or {}))
        self.store, self.problem = store, problem

    @property
    def causes(self) -> Mapping[str, BaseException]:
        """The error of each node, where a store has several."""
        causes: dict[str, BaseException] = self.args[2]
        return MappingProxyType(causes)  # made here: what an error keeps must be picklable, and a proxy is not

    def __str__(self) -> str:
        each = "".join(f"; {node}: {cause}" for node, cause in self.causes.items())
        return f"the store {self.store} is not available: {self.problem}{each}"


class OutcomeUnknown(StoreUnavailable):
    """A request was sent and its answer never came: it may or may not have happened.

    What may have been taken is being given back in the background, and ends by itself within the ttl.
    """

    def __str__(self) -> str:
        return f"the store {self.store} was asked and its answer is not known: {self.problem}"


class Misuse(DibsError, ValueError):
    """The call cannot be right, whatever the store would say: nothing was sent. Correct the program."""


class NotSupported(Misuse):
    """The store cannot do this; the message says which store can."""
