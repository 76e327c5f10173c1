"""The blocking faces: they decide nothing, call what `dibs.core` does, and take care of Ctrl-C around blocks."""

from dibs._blocking.client import Client
from dibs._blocking.connect import _default_client, connect, lock, locked
from dibs._blocking.election import Election, Leaders, Leading, Term
from dibs._blocking.idempotent import Call, Idempotent
from dibs._blocking.lease import Lease, Loss
from dibs._blocking.lock import Guarded, Lock
from dibs._blocking.locks import Leases, Locks, LossOfAny
from dibs._blocking.once import Once, Run

__all__ = [
    "Call",
    "Client",
    "Election",
    "Guarded",
    "Idempotent",
    "Leaders",
    "Leading",
    "Lease",
    "Leases",
    "Lock",
    "Locks",
    "Loss",
    "LossOfAny",
    "Once",
    "Run",
    "Term",
    "_default_client",
    "connect",
    "lock",
    "locked",
]
