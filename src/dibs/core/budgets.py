"""How long each step may take, and when it is tried again: the numbers that several files count on."""

from __future__ import annotations

LONGEST_STEP = 5.0
"""Seconds that one request may take where the ttl allows it: longer says that the store is unreachable."""

PARTING = 0.04
"""Seconds after the deadline at which the last ask and the leaving have ended; the keeper does the rest."""

LEAST = 0.005
"""Seconds below which a request is not even begun, but left to the keeper."""

RENEW_AT = 1 / 3
"""The part of the ttl after which a lease is renewed: two more tries fit before its end."""

RETURN_BUDGET = 1.0
"""Seconds for one request that gives something back."""


def retry_after(failures: int, ttl: float) -> float:
    """Seconds until a failed request is tried again: 100 ms, doubling to 1 s; shorter for a short ttl."""
    return min(1.0, min(0.1, ttl / 20) * 2.0 ** min(failures - 1, 10))


def valid_until(sent_at: float, ttl: float) -> float:
    """When a lease of *ttl* that was asked for at *sent_at* ends for its holder: before it can end at the store.

    The store began to count after *sent_at*; 1 % is for clocks that run at different rates, 2 ms for rounding.
    """
    return sent_at + ttl - (ttl * 0.01 + 0.002)
