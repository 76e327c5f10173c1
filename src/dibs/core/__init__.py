"""The algorithms of locking, written once as async code against a store and a runtime.

To read them, in this order: `lock` (what is locked), `acquiring` (one call of acquire), `waiters` (the queue inside a
client), `lease` (one grant), `loss` (whether and when it was lost), `keeper` and `schedule` (renewals), `context` (what
the leases of one client share), `client` (the public face above it), `closing` (its end). `budgets` has the seconds
that steps may take. Small things beside: `checks`, `deadline`, `connecting`, `held` and `open_blocks` (what is held
here), `locks` (several at once), `guarded`, `handover`, `locked`, `template`, `plain`, `deferred`, `copying`. `record`
writes what a holder leaves for later holders.

On top of locks stand `election`, `once` and `idempotent`, each a folder; `work` is what they run.

Imports go one way here, also those for type checking. Where a lower file needs something of a higher one, it states
what as a protocol: `LossHost`, `LeaseHost`, `ClosingHost`, `Guardable`, `Candidacy`, `WatchedElection`.
"""
