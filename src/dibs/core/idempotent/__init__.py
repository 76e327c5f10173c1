"""Calls that are carried out once for each key, on top of a lock with a record.

To read it, in this order: `idempotent` (what users call), `call` (one call), `outcome` (how it ended, as it is kept).
"""
