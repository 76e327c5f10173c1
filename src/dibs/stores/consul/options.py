"""The options that a URL of a Consul store may have, beside those of TLS."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

from dibs.errors import Misuse

NAMES = ("lock_delay", "min_ttl", "dc")

SHORTEST_TTL = 10.0
"""Seconds: what servers have as ``session_ttl_min`` if nobody changed it."""

LONGEST_TTL = 76_800.0
"""Seconds: no session of Consul has more than a day, and one lives an eighth longer than its leases."""

LONGEST_DELAY = 60.0
"""Seconds: Consul cuts a longer lock-delay."""

DELAY = 1 / 2
"""The part of the ttl that the lock-delay is by default. A holder whose session somebody destroyed learns of it when
it renews, after a third of the ttl at most, and so before the next is let in. With the ttl of 30 s that dibs has by
default it comes to 15 s, which is Consul's own default."""


class ConsulOptions(NamedTuple):
    """What they say."""

    lock_delay: float | None
    """Seconds; None: a part of the ttl."""
    min_ttl: float
    datacenter: str

    def delay_of(self, ttl: float) -> float:
        """The lock-delay of a session for leases of *ttl*."""
        return min(DELAY * ttl, LONGEST_DELAY) if self.lock_delay is None else self.lock_delay


def options_from(found: Mapping[str, str]) -> ConsulOptions:
    """Read them."""
    delay = _seconds(found, "lock_delay", LONGEST_DELAY) if "lock_delay" in found else None
    shortest = _seconds(found, "min_ttl", LONGEST_TTL) if "min_ttl" in found else SHORTEST_TTL
    if not shortest:
        raise Misuse("min_ttl=0: it is what the servers have as session_ttl_min, in seconds")
    return ConsulOptions(delay, shortest, found.get("dc", ""))


def token_from(password: str) -> str:
    """The ACL token: that of the URL, else that of the environment, as Consul's own clients have it."""
    return password or os.environ.get("CONSUL_HTTP_TOKEN", "")


def _seconds(found: Mapping[str, str], name: str, longest: float) -> float:
    try:
        value = float(found[name])
    except ValueError:
        value = math.nan
    if not 0 <= value <= longest:
        raise Misuse(f"{name} is a number of seconds from 0 to {longest:g}")
    return value
