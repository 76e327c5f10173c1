"""etcd 3: a key for each attempt, in the order in which etcd created them.

To read it, in this order: `keys` and `values` (what is in etcd), `requests` (its transactions), `attempt` (one ask),
`asking` (which transactions are sent when), `queue` and `waiting` (the waiters), `leases`, `tickets` and `keeper` (what
keeps a grant), `renewal`, `shares` (several holders of one name), `view` (what people see), `store`. The gateway is in
`port`.
"""
