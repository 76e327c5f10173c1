"""Where the servers of a store behind HTTP are, and how to connect to them: read from a URL. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from dibs.errors import Misuse

TLS_OPTIONS = {"verify", "ca", "cert", "key"}
"""Options in the query of a URL that say how TLS is done."""


class Endpoint(NamedTuple):
    """One server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Tls(NamedTuple):
    """How TLS is done: files are paths of PEM files, an empty one is what the system has, or none."""

    verify: bool = True
    """Whether the server has to prove who it is."""
    ca: str = ""
    cert: str = ""
    key: str = ""


class Source(NamedTuple):
    """The servers of one store: any of them can be asked anything."""

    kind: str
    """What the store is called in messages."""
    endpoints: tuple[Endpoint, ...]
    tls: Tls | None
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(map(str, self.endpoints))}"


def from_url(
    url: str, *, kind: str, port: int, tls: bool, ours: Collection[str] = ()
) -> tuple[Source, dict[str, str], str]:
    """Read *url*: the servers, the options of its query that are in *ours*, and its path."""
    parts = urlsplit(url)
    if url.partition(":")[2][:2] != "//":
        raise Misuse(f"{parts.scheme}: is followed by //, as in {parts.scheme}://host1:{port},host2")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    options = _options(parts.query, shown(url), {*ours, *(TLS_OPTIONS if tls else ())})
    own = {name: value for name, value in options.items() if name in ours}
    ways = {name: value for name, value in options.items() if name not in ours}
    source = Source(
        kind,
        tuple(_endpoint(host, port, shown(url)) for host in hosts.split(",")),
        _tls(ways) if tls else None,
        unquote(user),
        unquote(password),
    )
    return source, own, unquote(parts.path)


def shown(url: str) -> str:
    """*url* without its password and its query, for messages."""
    head, at, tail = url.partition("?")[0].rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else tail


def _endpoint(text: str, port: int, url: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{text}")
        return Endpoint(unquote(parts.hostname or "localhost"), parts.port or port)
    except ValueError as exc:  # not its text: it may have a part of the password
        problem = "no host with a port stands in it; special characters of a password are written as %2F and so on"
        raise Misuse(f"{url}: {problem}") from exc


def _options(query: str, url: str, known: Collection[str]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options.keys() - known:
        hint = "is for TLS, and this URL is without" if name in TLS_OPTIONS else "is not known"
        raise Misuse(f"{url}: the option {name!r} {hint}; known here: {', '.join(sorted(known)) or 'none'}")
    return options


def _tls(options: dict[str, str]) -> Tls:
    verify = options.get("verify", "yes").lower()
    if verify not in {"yes", "no"}:
        raise Misuse(f"verify={verify!r}: it is yes or no")
    if options.get("key") and not options.get("cert"):
        raise Misuse("key=… names the key of a certificate: cert=… is missing")
    return Tls(verify == "yes", options.get("ca", ""), options.get("cert", ""), options.get("key", ""))
