"""What several technologies share to reach the outside; what only one needs is in its own folder, in `port`.

`http` for stores behind HTTP, `db` for connections of the caller, `url` reads URLs strictly, `cron` reads cron
expressions, `fork` keeps a child from closing what is its parent's.
"""
