"""One Redis or Valkey: a server, a master behind sentinels, or a cluster.

To read it, in this order: `keys` and `values` (what is in the server), `scripts` (what it does in one step), `store`
(which script is sent when), `renewal`, `shares` (several holders of one name), `records`, `view` (what
people see), `rights`. How requests travel is in `port`.
"""
