"""Which rights a user of the PostgreSQL stores needs."""

from __future__ import annotations

GRANT = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON dibs_lease, dibs_waiter, dibs_share, dibs_advisory, dibs_advisory_waiter, "
    'dibs_advisory_share TO "{user}"; GRANT USAGE ON SEQUENCE dibs_waiter_ticket_seq TO "{user}"'
)
