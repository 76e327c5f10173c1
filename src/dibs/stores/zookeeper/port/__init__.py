"""The ZooKeeper store's connection to its ensemble, on kazoo.

Read in this order: `source` (the URL), `client` (kazoo, with bounded tries), `session`, `requests` (what is sent and
what answers mean), `condition` (a check in the caller's own transaction).
"""
