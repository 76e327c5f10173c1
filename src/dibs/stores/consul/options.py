"""The options that a URL of a Consul store may have, besides those for TLS."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

from dibs.errors import Misuse

NAMES = ("lock_delay", "min_ttl", "dc")

SHORTEST_TTL = 10.0
"""Seconds: the ``session_ttl_min`` of servers by default."""

LONGEST_TTL = 76_800.0
"""Seconds: a session of Consul lasts at most a day, and is an eighth longer than its leases."""

LONGEST_DELAY = 60.0
"""Seconds: Consul shortens a longer lock-delay to this."""

DELAY = 1 / 2
"""The lock-delay by default, as a part of the ttl. A holder whose session was destroyed learns of it when it renews,
after a third of the ttl at most, and so before the next client gets the lock. With the default ttl of 30 s, the
lock-delay is 15 s, which is Consul's own default."""


class ConsulOptions(NamedTuple):
    """The options of a URL, with defaults for those that it does not have."""

    lock_delay: float | None
    """Seconds; None stands for a part of the ttl."""
    min_ttl: float
    datacenter: str

    def delay_of(self, ttl: float) -> float:
        """The lock-delay of a session for leases of *ttl*."""
        return min(DELAY * ttl, LONGEST_DELAY) if self.lock_delay is None else self.lock_delay


def options_from(found: Mapping[str, str]) -> ConsulOptions:
    """Read the options *found* in a URL; `Misuse` for values that Consul does not allow."""
    delay = _seconds(found, "lock_delay", LONGEST_DELAY) if "lock_delay" in found else None
    shortest = _seconds(found, "min_ttl", LONGEST_TTL) if "min_ttl" in found else SHORTEST_TTL
    if not shortest:
        raise Misuse("min_ttl=0: it is what the servers have as session_ttl_min, in seconds")
    return ConsulOptions(delay, shortest, found.get("dc", ""))


def token_from(password: str) -> str:
    """The ACL token: that of the URL, or that of the environment, as in Consul's own clients."""
    return password or os.environ.get("CONSUL_HTTP_TOKEN", "")


def _seconds(found: Mapping[str, str], name: str, longest: float) -> float:
    try:
        value = float(found[name])
    except ValueError:
        value = math.nan
    if not 0 <= value <= longest:
        raise Misuse(f"{name} is a number of seconds from 0 to {longest:g}")
    return value
