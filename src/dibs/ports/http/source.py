"""Where the servers of a store behind HTTP are, and how to connect to them: read from a URL. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from dibs.errors import Misuse
from dibs.ports.url import read

TLS_OPTIONS = {"verify", "ca", "cert", "key"}
"""The options for TLS in the query of a URL."""


class Endpoint(NamedTuple):
    """Host and port of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Tls(NamedTuple):
    """The options for TLS. Files are paths of PEM files; an empty path stands for what the system has, or for none."""

    verify: bool = True
    """Whether the certificate of the server is checked."""
    ca: str = ""
    cert: str = ""
    key: str = ""


class HttpSource(NamedTuple):
    """The servers of one store: any of them can be asked anything."""

    kind: str
    """What the store is called in messages."""
    endpoints: tuple[Endpoint, ...]
    tls: Tls | None
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(map(str, self.endpoints))}"

    def __repr__(self) -> str:
        return f"<HttpSource {self}>"  # without the password


def from_url(
    url: str, *, kind: str, port: int, tls: bool, ours: Collection[str] = ()
) -> tuple[HttpSource, dict[str, str], str]:
    """Read *url*: the servers, the options of its query that are in *ours*, and its path."""
    found = read(url)
    why = "" if tls else f"; those of TLS need {found.scheme}s://"
    found.refuse_unknown({*ours, *(TLS_OPTIONS if tls else ())}, why)
    own = {name: value for name, value in found.query.items() if name in ours}
    ways = {name: value for name, value in found.query.items() if name not in ours}
    endpoints = tuple(Endpoint(host.name, host.port or port) for host in found.hosts)
    return HttpSource(kind, endpoints, _tls(ways) if tls else None, found.user, found.password), own, found.path


def _tls(options: dict[str, str]) -> Tls:
    verify = options.get("verify", "yes").lower()
    if verify not in {"yes", "no"}:
        raise Misuse("verify is yes or no")
    if options.get("key") and not options.get("cert"):
        raise Misuse("key=… names the key of a certificate: cert=… is missing")
    return Tls(verify == "yes", options.get("ca", ""), options.get("cert", ""), options.get("key", ""))
