"""Work that runs once in each slot of a schedule, on top of a lock with a record.

To read it, in this order: `slots` (which slot a moment is in), `once` (what users call), `claim` (who runs a slot),
`history` (how the runs ended).
"""
