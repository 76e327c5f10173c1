"""The tests that every store must pass, in every runtime, also for stores that are made elsewhere.

Needs pytest, which the extra ``dibs[testing]`` brings.
"""

from dibs.testing.contract.contract import StoreContract
from dibs.testing.contract.suite import needs
from dibs.testing.contract.world import World

__all__ = ["StoreContract", "World", "needs"]
