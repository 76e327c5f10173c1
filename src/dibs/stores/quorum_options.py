"""Which nodes a Redlock has and how it is tuned: read from a URL, or from a list of URLs or clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from dibs.errors import Misuse
from dibs.ports.redis_source import Source, from_client, from_url

LONGEST_TTL = 86_400.0
"""Seconds: a node that lost its memory stays out for the longest ttl, so no ttl is longer than a day."""

LONGEST_ATTEMPT = 5.0
"""Seconds after which an attempt is given up, whoever may still answer: what it heard before counts no more."""


class Options(NamedTuple):
    """How a Redlock is tuned; docs/stores/redlock.md explains each."""

    drift: float = 0.01
    """How much faster a node's clock may run than ours, as a part."""
    retry_delay: float = 0.01
    """Seconds before who got some votes, but no quorum, asks again, at least."""
    jitter: float = 0.04
    """Up to so many seconds more, by chance: else two would take each other's votes for ever."""
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


def checked(options: Options) -> Options:
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
        raise Misuse(f'lost_memory={options.lost_memory!r}: it is "wait" or "vote"')
    return options


def from_redlock_url(url: str, *, blocking: bool) -> tuple[list[Source], Options]:
    """Read ``redlock://[user:password@]h1,h2,h3[/db][?options]``; ``rediss+redlock://`` is the same over TLS."""
    parts = urlsplit(url)
    secure = parts.scheme.lower() == "rediss+redlock"
    scheme = "rediss" if secure else "redis"
    userinfo, at, hosts = parts.netloc.rpartition("@")
    ours, theirs = _split_query(parts.query)
    query = f"?{urlencode(theirs)}" if theirs else ""
    urls = [f"{scheme}://{userinfo}{at}{host}{parts.path}{query}" for host in hosts.split(",") if host]
    return sources_of(urls, blocking=blocking), _read(ours)


def sources_of(nodes: Sequence[Any], *, blocking: bool) -> list[Source]:
    """Read a list of URLs, or of clients of redis-py."""
    if len(nodes) < 3:
        raise Misuse(f"a Redlock has at least three nodes, this one has {len(nodes)}; one node is redis://host")
    sources = [_source(node, blocking=blocking) for node in nodes]
    addresses = [str(source.addresses[0]) for source in sources]
    for address in addresses:
        if addresses.count(address) > 1:
            raise Misuse(f"{address} is named twice, and two votes of one node are one; name other servers")
    return sources


def _source(node: Any, *, blocking: bool) -> Source:
    if isinstance(node, str):
        source, ours = from_url(node, blocking=blocking)
        if ours:
            raise Misuse(f"{', '.join(ours)}: options belong into a redlock:// URL, not to one of its nodes")
    else:
        source = from_client(node, blocking=blocking)
    if source.kind != "single":
        raise Misuse(
            f"a node of a Redlock is one server, not a {source.kind}: what fails over by itself may come back without "
            "its memory, and nobody would know"
        )
    return source


def _split_query(query: str) -> tuple[dict[str, str], dict[str, str]]:
    pairs = dict(parse_qsl(query, keep_blank_values=True))
    ours = {name: pairs.pop(name) for name in Options._fields if name in pairs}
    return ours, pairs


def _read(given: dict[str, str]) -> Options:
    read: dict[str, Any] = dict(given)
    for name in ("drift", "retry_delay", "jitter", "node_timeout"):
        if name in given:
            read[name] = _number(name, given[name])
    if "durable" in given:
        if given["durable"] not in {"yes", "no"}:
            raise Misuse(f'durable={given["durable"]!r}: it is "yes" or "no"')
        read["durable"] = given["durable"] == "yes"
    if "retry_delay" in given and "jitter" not in given:
        read["jitter"] = max(Options().jitter, 4 * read["retry_delay"])
    return checked(Options(**read))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as exc:
        raise Misuse(f"{name}={text!r}: it is a number") from exc
