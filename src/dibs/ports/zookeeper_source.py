"""Where the ensemble is and how to log in to it: read from a URL, or from a KazooClient of the caller.

Nothing is sent here. What a caller's client is connected with (hosts, chroot, credentials, TLS) is copied; its session
is left alone, since locks end with theirs, and its owner may stop it at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

try:
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import SequentialThreadingHandler
except ImportError as exc:
    raise ImportError("the ZooKeeper store needs kazoo: pip install 'dibs[zookeeper]'") from exc

from dibs.errors import Misuse

BASE = "/dibs"
"""Under which the locks stand where the URL names no chroot."""

TLS = {"ca": "ca", "cert": "certfile", "key": "keyfile", "key_password": "keyfile_password"}
"""Options of a URL about TLS, and what kazoo calls them."""

SWITCHES = {"yes": True, "no": False}


class Source(NamedTuple):
    """One ensemble, and the part of its tree that is ours."""

    hosts: tuple[str, ...]
    """Each as ``host:port``."""
    base: str
    login: frozenset[tuple[str, str]]
    """Scheme and credentials."""
    options: Mapping[str, Any]
    """TLS and SASL, as kazoo takes them."""
    private: bool
    """Whether only who logged in like us may touch our nodes."""
    shown: str


def from_url(url: str) -> Source:
    """Read *url*: ``zookeeper://user:password@h1:2181,h2/chroot``; ``zookeepers://`` for TLS."""
    parts = urlsplit(url)
    userinfo, at, hosts = parts.netloc.rpartition("@")
    shown = f"{parts.scheme}://{'…@' if at else ''}{hosts}{parts.path}"
    query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    user, _, password = userinfo.partition(":")
    login = frozenset([("digest", f"{unquote(user)}:{unquote(password)}")] if at else [])
    private = _switch(query.pop("private", "yes" if at else "no"), "private", shown)
    options = _tls(query, shown) if parts.scheme.lower() == "zookeepers" else {}
    if query:
        raise Misuse(f"{shown}: there is no option {sorted(query)[0]!r}; zookeepers:// has those of TLS")
    return Source(_hosts(hosts, shown), _base(unquote(parts.path), shown), login, options, private, shown)


def from_client(client: Any) -> Source:
    """Read how *client*, a KazooClient, is connected."""
    if not isinstance(client, KazooClient):
        raise Misuse(f"{type(client).__name__} is no KazooClient")
    if not isinstance(client.handler, SequentialThreadingHandler):
        raise Misuse(
            f"this KazooClient works with {client.handler.name}, and dibs with threads or asyncio: connect by a URL"
        )
    names = ("use_ssl", "ca", "certfile", "keyfile", "keyfile_password", "verify_certs", "check_hostname")
    options = {name: getattr(client, name) for name in names}
    if client._connection.sasl_options is not None:
        options["sasl_options"] = dict(client._connection.sasl_options)
    hosts = tuple(_hostport(host, port) for host, port in client.hosts)
    private = bool(client.auth_data) and bool(client.default_acl)
    base = client.chroot or BASE
    shown = f"zookeeper://{'…@' if client.auth_data else ''}{','.join(hosts)}{client.chroot}"
    return Source(hosts, base, frozenset(client.auth_data), options, private, shown)


def _hosts(text: str, shown: str) -> tuple[str, ...]:
    try:
        return tuple(_host(host) for host in (text or "localhost").split(","))
    except ValueError as exc:
        raise Misuse(f"{shown}: hosts are written as in zookeeper://h1:2181,h2,[::1]:2182/chroot") from exc


def _host(text: str) -> str:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return _hostport(unquote(parts.hostname), parts.port or 2181)


def _hostport(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _base(path: str, shown: str) -> str:
    base = path.rstrip("/")
    if "//" in path or any(part in {".", ".."} for part in base.split("/")) or not base.isprintable():
        raise Misuse(f"{shown}: the path is a chroot, such as /apps/locks")
    return base or BASE


def _tls(query: dict[str, str], shown: str) -> dict[str, Any]:
    """What kazoo checks by default, and the name of the host besides."""
    check = _switch(query.pop("check_hostname", "yes"), "check_hostname", shown)
    files = {theirs: query.pop(ours) for ours, theirs in TLS.items() if ours in query}
    return {"use_ssl": True, "check_hostname": check, **files}


def _switch(value: str, name: str, shown: str) -> bool:
    if value not in SWITCHES:
        raise Misuse(f"{shown}: {name}={value!r}: it is yes or no")
    return SWITCHES[value]
