"""Consul: a key that is locked for a session, one transaction for each step.

To read it, in this order: `keys` and `txn` (what is in Consul), `attempt` (one ask), `grant` (which transactions are
sent when), `waiting`, `sessions`, `renewal`, `lease` (hand over, give back), `holdings` (what a client holds), `view`
and `reading` (what steps and people see), `options`, `store`. The agent's API is in `port`.
"""
