"""The blocking faces: they decide nothing, call what `dibs.core` does, and take care of Ctrl-C around blocks."""

from dibs._blocking.client import Client
from dibs._blocking.default import _default_client, connect, lock, locked
from dibs._blocking.election import Election, Leaders, Leading, Term
from dibs._blocking.idempotent import Call, Idempotent
from dibs._blocking.lease import Lease, Loss
from dibs._blocking.once import Once, Run
from dibs._blocking.several import Leases, Locks, LossOfAny
from dibs._blocking.single import Guarded, Lock

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
