"""Session locks of PostgreSQL: the server frees them when the session that has them ends.

To read it, in this order: `key` and `mode` (which lock), `sql` (the statements), `store` (the steps), `sessions`,
`holding` and `holdings` (what a client has), `losses` (sessions that end), `asking` (a question for any session),
`waiting` (the server's queue), `release`, `renewal`, `watch` (locks that end by themselves), `grant`, `limit`.
"""
