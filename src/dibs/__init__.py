"""Distributed locks that renew themselves, say when they are lost, and carry a number the resource can check.

This is the blocking API. The same names for async code are in `dibs.aio`.
"""

from dibs._blocking import (
    Call,
    Client,
    Election,
    Idempotent,
    Lease,
    Leases,
    Lock,
    Locks,
    Loss,
    Term,
    connect,
    lock,
    locked,
)
from dibs.errors import (
    DibsError,
    KeyReused,
    LeaseLost,
    LossReason,
    Misuse,
    NotAcquired,
    NotSupported,
    OutcomeUnknown,
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
    "OutcomeUnknown",
    "Record",
    "StaleFence",
    "StoreUnavailable",
    "Term",
    "connect",
    "lock",
    "locked",
]
