"""How the PostgreSQL stores reach their server.

To read it, in this order: `source` (the URL), `driver`, `dial`, `connection` (one connection), `pool` and `turns` (who
uses it), `session` (one that holds advisory locks), `statement` and `values` (what is sent), `listener` (how a waiter
is woken), `hangup` (a connection that ended), `errors`, `rights`.
"""
