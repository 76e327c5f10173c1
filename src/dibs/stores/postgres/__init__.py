"""PostgreSQL: leases in rows (`rows`), and locks that last as long as a session (`advisory`).

Both share their tables (`tables`, made by `schema`), the options of their URLs (`options`) and what people see
(`facts`). How statements travel is in `port`. Locks of the caller's own transaction are in `dibs.postgres`.
"""
