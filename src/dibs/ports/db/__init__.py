"""The caller's own database connection, of any driver.

To read it, in this order: `session` (one way to run a statement), `drivers`, `sqlalchemy`, `django`, `sync_or_async`,
`errors` (what a driver's error says), `identifiers` (names of tables and columns).
"""
