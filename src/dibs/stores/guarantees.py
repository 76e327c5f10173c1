"""What a store promises, as data: the docs render their table from it, and `dibs show` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Effect(StrEnum):
    """The effect of an event on a lock that is held."""

    KEPT = "kept"
    """The holder keeps the lock; no other client gets it."""
    FREED = "freed"
    """The lock goes to the next client; the former holder is gone, or was told in time."""
    FENCED = "fenced"
    """Two clients may believe for a while that they hold it; the fence orders them, and a guard refuses the older."""
    CANNOT_HAPPEN = "cannot happen"
    """The store has no such part."""


class Ability(StrEnum):
    """What most stores can do. A store that cannot declares it, and `dibs.testing.contract` leaves out its tests."""

    EXPIRY = "expiry"
    """A lease ends after its ttl, whatever became of its holder."""
    PUNCTUAL = "punctual end"
    """A lease that is not renewed ends at the end of its ttl, not some seconds later."""
    MEMORY = "memory"
    """The last fence of a name can be seen after its grant is over."""
    HANDOVER = "hand-over"
    """A lease can be detached here and resumed by another process."""
    ORDER = "order"
    """First come, first served; newcomers never overtake waiters."""
    RECORDS = "records"
    """A holder can leave a record, in one step with the end of its lease, and an ask can be answered with it."""
    SHARED = "shared lock"
    """Several clients may hold one name together; an exclusive holder shares it with none."""
    SEMAPHORE = "semaphore"
    """A name has a number of slots, and each holder takes some of them."""


class Promise(NamedTuple):
    """What one event does, and why."""

    effect: Effect
    why: str

    def __str__(self) -> str:
        return f"{self.effect}: {self.why}"


class Bound(NamedTuple):
    """How long something lasts at most, and why."""

    seconds: float
    why: str

    def __str__(self) -> str:
        return f"{f'at most {self.seconds:g} s' if self.seconds else 'at once'}: {self.why}"


class Guarantees(NamedTuple):
    """The declaration of one store."""

    name: str
    good_for: str
    """When to take this store, in one sentence."""
    fence: str
    """Where its fence comes from, and what could make it fall."""
    wake: str
    """How a waiter learns that it has its turn."""
    order: str
    """Which waiter is next."""
    freed: str
    """When the lock is free again after its holder died."""
    waiter_crash: Bound
    """For how long a killed waiter, once it has its turn, holds up the waiters behind it."""
    client_pause: Promise
    client_crash: Promise
    server_restart: Promise
    failover: Promise
    partition: Promise
    clock_jump: Promise
    cannot: Mapping[Ability, str] = MappingProxyType({})
    """What the store cannot do, and why or what to take instead."""
