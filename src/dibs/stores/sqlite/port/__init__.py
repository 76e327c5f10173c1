"""What the embedded store needs of the machine: SQLite, files, pipes, locks.

To read it, in this order: `runner` (where steps run), `database` (the files), `connection` (one connection),
`write_queue` (who may write), `wake_pipe` (how a waiter is woken), `liveness` (which processes live), `location` and
`mounts` (where the files may be), `boot_id`, `errors`.
"""
