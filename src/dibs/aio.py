"""Distributed locks that renew themselves, say when they are lost, and carry a number the resource can check.

This is the API for async code: the names of `dibs`, to be awaited.
"""

from dibs._async import connect, lock, locked
from dibs.core.client import Client
from dibs.core.election.election import Election
from dibs.core.election.term import Term
from dibs.core.idempotent.call import Call
from dibs.core.idempotent.idempotent import Idempotent
from dibs.core.lease import Lease
from dibs.core.lock import Lock
from dibs.core.locks import Leases, Locks
from dibs.core.loss import Loss
from dibs.core.once.once import Once, Run
from dibs.errors import (
    DibsError,
    KeyReused,
    LeaseLost,
    LossReason,
    Misuse,
    NotAcquired,
    NotSupported,
    OutcomeUnknown,
    Skipped,
    SkipReason,
    StaleFence,
    StoreUnavailable,
)
from dibs.holder import Eviction, Holder, Leader, LockState, Record

__all__ = [
    "Call",
    "Client",
    "DibsError",
    "Election",
    "Eviction",
    "Holder",
    "Idempotent",
    "KeyReused",
    "Leader",
    "Lease",
    "LeaseLost",
    "Leases",
    "Lock",
    "LockState",
    "Locks",
    "Loss",
    "LossReason",
    "Misuse",
    "NotAcquired",
    "NotSupported",
    "Once",
    "OutcomeUnknown",
    "Record",
    "Run",
    "SkipReason",
    "Skipped",
    "StaleFence",
    "StoreUnavailable",
    "Term",
    "connect",
    "lock",
    "locked",
]
