"""Leases in rows of a PostgreSQL table.

To read it, in this order: `grant` (the statements that give out a lock), `asking` (which of them are sent when),
`store`, `lease` (renew, show, hand over, evict), `share_sql` and `shares` (several holders of one name), `records`.
"""
