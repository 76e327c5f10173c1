"""The embedded store: one SQLite file for all processes of a user on this machine.

To read it, in this order: `store` (the steps), `schema` and `row` (what is in the file), `grant` (how a lock is given
out), `wakeup` (who is woken next), `lease` (renew, give back, hand over, evict), `shares` and `capacity` (several
holders of one name), `records`, `view` (what people see), `deaths` (clients that ended), `url`. What touches the
machine is in `port`.
"""
