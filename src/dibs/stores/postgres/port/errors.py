"""Says in a sentence what PostgreSQL's errors mean for a user: certainly not done, and why; or not known."""

from __future__ import annotations

import re

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.stores.postgres.port.driver import PGresult, pq, psycopg
from dibs.stores.postgres.port.rights import GRANT

SENTENCES = {
    "25006": "this server may only read: it is a standby, or default_transaction_read_only is on; name all servers in "
    "the URL, as in postgresql://host1,host2/db, and dibs finds the one that may write",
    "42501": f"this user lacks a right; let the owner of the tables run: {GRANT}",
    "42P01": "a table of dibs is missing; the next request makes it, or run what `dibs init --sql` prints",
    "42703": "somebody changed the tables of dibs, or they are of another version; while nobody holds or awaits a "
    "lock, drop the tables whose names begin with dibs_: the next request makes them anew",
    "23505": "the sequence dibs_waiter_ticket_seq was set back below tickets that are in use; ask again",
    "53300": "the server has no connection left (max_connections, or the limit of this user or database)",
    "53200": "the server is out of memory, or its table of locks is full (max_locks_per_transaction)",
    "53100": "the server's disk is full",
    "55P03": "another transaction keeps the row of this lock, which takes less than a millisecond; find it in "
    "pg_stat_activity (a session that is idle in transaction) and end it",
    "57014": "the statement was cancelled, by statement_timeout or by an administrator",
    "40P01": "the server ended a deadlock",
    "40001": "the server could not order two transactions: ours were not READ COMMITTED; ask again",
    "0A000": "the tables were changed under this connection",
    "26000": "a pooler stands between this client and the server and gave us another session; tell dibs of it: "
    "append ?pooler=transaction to the URL",
    "22021": "the encoding of this database cannot store this text; make the database with UTF8",
    "22P05": "the encoding of this database cannot store this text; make the database with UTF8",
}
SENTENCES["42P05"] = SENTENCES["26000"]

MISSING = {"42P01", "3F000"}
"""A table, or its schema, is not there."""

RENEW_CONNECTION = {"0A000", "26000", "42P05", "40001"}
"""After these errors a new connection is opened, which asks for the state of the server again."""

CANNOT_CONNECT = [
    ("Connection refused", "nothing listens there; is the server running, and are host and port right?"),
    ("password authentication failed|no password supplied", "the server refuses this user or password"),
    ("no pg_hba.conf entry", "the server does not let this user connect from here (pg_hba.conf)"),
    (r'database "[^"]*" does not exist', "there is no such database; create it first"),
    (r'role "[^"]*" does not exist', "the server does not know this user"),
    ("permission denied for database", "this user may not connect to this database: GRANT CONNECT ON DATABASE … TO …"),
    (
        "too many clients|too many connections|remaining connection slots|no more connections allowed",
        "the server has no connection left (max_connections, or the limit of this user or database)",
    ),
    ("starting up|shutting down|recovery mode", "the server is starting or stopping"),
    ("session is read-only|not in hot standby|server is in hot standby", "none of these servers may write"),
    ("could not translate host name|Name or service not known", "the name of the host is not known"),
    ("out of shared memory", "the server's table of locks is full, so it accepts nobody (max_locks_per_transaction)"),
]
"""What libpq says when there is no connection: it passes on no code, so we read its words."""


def refused(store: str, result: PGresult, user: str) -> StoreUnavailable:
    """Our error for *result*, one that says that the transaction was not carried out, or that the session ends."""
    error = psycopg.errors.error_from_result(result)
    said = (error.diag.message_primary or str(error)).strip()
    severity = error.diag.severity_nonlocalized or error.diag.severity or ""
    if severity in {"FATAL", "PANIC"}:  # the session ends, at whatever point it was
        problem: StoreUnavailable = OutcomeUnknown(store, f"the server ended the session ({said})")
    else:
        sentence = SENTENCES.get(error.sqlstate or "", "the server refused the statement").format(user=user)
        problem = StoreUnavailable(store, f"{sentence} ({said})")
    problem.__cause__ = error
    return problem


def tables_are_gone(error: StoreUnavailable) -> bool:
    """Whether our tables were removed while a client was connected: they can be made again."""
    return getattr(error.__cause__, "sqlstate", None) in MISSING


def code_of(result: PGresult) -> str:
    """The five letters that PostgreSQL gives to each kind of error."""
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()


def no_connection(store: str, said: str) -> StoreUnavailable:
    """Our error for a connection that was not made, in libpq's words and ours."""
    said = " ".join(said.split())
    for pattern, sentence in CANNOT_CONNECT:
        if re.search(pattern, said):
            return StoreUnavailable(store, f"{sentence} ({said})")
    return StoreUnavailable(store, said or "the connection was not made")
