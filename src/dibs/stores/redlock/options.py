"""Which nodes a Redlock has and how it is tuned: read from a URL, or from a list of URLs or clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from dibs.errors import Misuse
from dibs.ports.url import read
from dibs.stores.redis.port.source import RedisSource, from_client, from_url

LONGEST_TTL = 86_400.0
"""Seconds: a node that lost its memory stays out for the longest ttl, so no ttl is longer than a day."""

LONGEST_ATTEMPT = 5.0
"""Seconds after which an attempt is given up, whichever node may still answer: what it heard before is out of date."""


class RedlockOptions(NamedTuple):
    """How a Redlock is tuned; docs/stores/redlock.md explains each."""

    drift: float = 0.01
    """How much faster a node's clock may run than ours, as a fraction."""
    retry_delay: float = 0.01
    """Seconds at least before a client that got some votes, but no quorum, asks again."""
    jitter: float = 0.04
    """Up to this many seconds more, by chance: without it two would take each other's votes for ever."""
    node_timeout: float = 0.0
    """Seconds for which one node is waited for; 0: a twentieth of the ttl, from 50 ms to 1 s."""
    lost_memory: str = "wait"
    """What becomes of a node that lost its memory: it waits and is synchronised, or votes at once (``vote``)."""
    durable: bool = False
    """Whether every node writes each change to its disk before it answers, so that a restart loses nothing."""
    key: str | None = None
    """How the keys are called, as in the Redis store."""

    def patience(self, ttl: float) -> float:
        """Seconds for which one node is waited for in one round."""
        if not self.node_timeout:
            return min(max(ttl / 20, 0.05), 1.0)
        if self.node_timeout > ttl / 3:
            raise Misuse(
                f"node_timeout={self.node_timeout:g} is more than a third of ttl={ttl:g}: one slow node would use up "
                "the lease; lower it or raise the ttl"
            )
        return self.node_timeout

    def kept_for(self, ttl: float) -> float:
        """The ttl that nodes are told, so that a lease of *ttl* has ended for its holder before it ends there."""
        return ttl if self.drift <= 0.01 else ttl * 0.99 / (1 - self.drift)


def checked(options: RedlockOptions) -> RedlockOptions:
    """Return *options* if they fit together."""
    if not 0 <= options.drift <= 0.5:
        raise Misuse(f"drift={options.drift:g}: it is a part, from 0 to 0.5, such as 0.01 for one per cent")
    if not 0 < options.retry_delay <= 10:
        raise Misuse(f"retry_delay={options.retry_delay:g}: it is a number of seconds from above 0 to 10")
    if not options.retry_delay <= options.jitter <= 10:
        raise Misuse(
            f"jitter={options.jitter:g}: it is a number of seconds, at least retry_delay={options.retry_delay:g} (two "
            "that ask at the same time would take each other's votes again and again) and at most 10"
        )
    if not 0 <= options.node_timeout <= LONGEST_ATTEMPT / 2:
        raise Misuse(f"node_timeout={options.node_timeout:g}: it is a number of seconds up to {LONGEST_ATTEMPT / 2:g}")
    if options.lost_memory not in {"wait", "vote"}:
        raise Misuse('lost_memory is "wait" or "vote"')
    return options


def from_redlock_url(url: str, *, blocking: bool) -> tuple[list[RedisSource], RedlockOptions]:
    """Read ``redlock://[user:password@]h1,h2,h3[/db][?options]``; ``rediss+redlock://`` is the same over TLS."""
    found = read(url)
    scheme = "rediss" if found.scheme == "rediss+redlock" else "redis"
    if len(found.hosts) < 3:
        found.refuse(f"a Redlock has at least three nodes, this one has {len(found.hosts)}; for one node, redis://host")
    userinfo, at, _ = found.authority.rpartition("@")
    ours = {name: value for name, value in found.query.items() if name in RedlockOptions._fields}
    theirs = urlencode({name: value for name, value in found.query.items() if name not in ours}, quote_via=quote)
    rest = quote(found.path) + (f"?{theirs}" if theirs else "")
    urls = [f"{scheme}://{userinfo}{at}{host}{rest}" for host in found.hosts]
    return sources_of(urls, blocking=blocking), _read(ours)


def sources_of(nodes: Sequence[Any], *, blocking: bool) -> list[RedisSource]:
    """Read a list of URLs, or of clients of redis-py."""
    if len(nodes) < 3:
        raise Misuse(f"a Redlock has at least three nodes, this one has {len(nodes)}; one node is redis://host")
    sources = [_source(node, blocking=blocking) for node in nodes]
    addresses = [str(source.addresses[0]) for source in sources]
    for address in addresses:
        if addresses.count(address) > 1:
            raise Misuse(f"{address} is named twice, and two votes of one node are one; name other servers")
    return sources


def _source(node: Any, *, blocking: bool) -> RedisSource:
    if isinstance(node, str):
        source, ours = from_url(node, blocking=blocking)
        if ours:
            raise Misuse(f"{', '.join(ours)}: options belong into a redlock:// URL, not to one of its nodes")
    else:
        source = from_client(node, blocking=blocking)
    if source.kind != "single":
        raise Misuse(
            f"a node of a Redlock is one server, not a {source.kind}: what fails over by itself may come back without "
            "its memory, and no client would know"
        )
    return source


def _read(given: dict[str, str]) -> RedlockOptions:
    read: dict[str, Any] = dict(given)
    for name in ("drift", "retry_delay", "jitter", "node_timeout"):
        if name in given:
            read[name] = _number(name, given[name])
    if "durable" in given:
        if given["durable"] not in {"yes", "no"}:
            raise Misuse('durable is "yes" or "no"')
        read["durable"] = given["durable"] == "yes"
    if "retry_delay" in given and "jitter" not in given:
        read["jitter"] = max(RedlockOptions().jitter, 4 * read["retry_delay"])
    return checked(RedlockOptions(**read))


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Misuse(f"{name} is a number, such as {getattr(RedlockOptions(), name):g}")
    return value
