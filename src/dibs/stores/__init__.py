"""What can grant leases: the interface of a store, what stores promise, and one folder for each technology."""

from dibs.stores.guarantees import Ability, Effect, Guarantees, Promise
from dibs.stores.record_store import RecordStore
from dibs.stores.registry import open_client, open_store
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

__all__ = [
    "Ability",
    "Ask",
    "Busy",
    "Claim",
    "Effect",
    "Grant",
    "Guarantees",
    "Promise",
    "RecordStore",
    "Store",
    "open_client",
    "open_store",
]
