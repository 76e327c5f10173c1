"""ZooKeeper: a node for each attempt, numbered by the ensemble, that ends with the client's session.

Read in this order: `paths` and `facts` (what is in ZooKeeper), `states` and `progress` (how an attempt goes on),
`attendance`, `ticket` and `tickets` (one attempt, and all attempts of a client), `grant`, `release`, `renewal`, `watch`
(tickets that end without a release), `sessions`, `view` (what people see), `store`. The session with an ensemble is in
`port`.
"""
