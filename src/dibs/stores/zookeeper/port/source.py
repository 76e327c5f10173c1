"""Where the ensemble is and how to log in to it: read from a URL, or from a KazooClient of the caller.

Nothing is sent here. The settings of the caller's client (hosts, chroot, credentials, TLS) are copied. Its session is
left alone: locks end with their session, and the caller may stop it at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

try:
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import SequentialThreadingHandler
except ImportError as exc:
    raise ImportError("the ZooKeeper store needs kazoo: pip install 'dibs[zookeeper]'") from exc

from dibs.errors import Misuse
from dibs.ports.url import read

BASE = "/dibs"
"""The node above all locks if the URL names no chroot."""

TLS = {"ca": "ca", "cert": "certfile", "key": "keyfile", "key_password": "keyfile_password"}
"""Options of a URL about TLS, and what kazoo calls them."""

SWITCHES = {"yes": True, "no": False}


class ZooKeeperSource(NamedTuple):
    """One ensemble, and the node in its tree that is above our locks."""

    hosts: tuple[str, ...]
    """Each as ``host:port``."""
    base: str
    login: frozenset[tuple[str, str]]
    """Scheme and credentials."""
    options: Mapping[str, Any]
    """The options for TLS and SASL, as kazoo takes them."""
    private: bool
    """Whether our nodes are closed to all who did not log in as the same user."""
    shown: str

    def __repr__(self) -> str:
        return f"<ZooKeeperSource {self.shown}>"  # without the password


def from_url(url: str) -> ZooKeeperSource:
    """Read *url*: ``zookeeper://user:password@h1:2181,h2/chroot``; ``zookeepers://`` for TLS."""
    found = read(url)
    hosts = tuple(_hostport(host.name, host.port or 2181) for host in found.hosts)
    if found.login and not (found.user and found.password):
        found.refuse("a login has a user and a password, as in zookeeper://user:password@host")
    tls = found.scheme == "zookeepers"
    known = {"private", *(("check_hostname", *TLS) if tls else ())}
    found.refuse_unknown(known, "" if tls else "; those of TLS need zookeepers://")
    query = dict(found.query)
    login = frozenset([("digest", f"{found.user}:{found.password}")] if found.login else [])
    private = _switch(query.pop("private", "yes" if found.login else "no"), "private", found.shown)
    options = _tls(query, found.shown) if tls else {}
    base = _base(found.path, found.shown)
    return ZooKeeperSource(hosts, base, login, options, private, found.shown + found.path.rstrip("/"))


def from_client(client: Any) -> ZooKeeperSource:
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
    return ZooKeeperSource(hosts, base, frozenset(client.auth_data), options, private, shown)


def _hostport(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _base(path: str, shown: str) -> str:
    base = path.rstrip("/")
    if "//" in path or any(part in {".", ".."} for part in base.split("/")) or not base.isprintable():
        raise Misuse(f"{shown}: the path is a chroot, such as /apps/locks")
    return base or BASE


def _tls(query: dict[str, str], shown: str) -> dict[str, Any]:
    """The options for TLS. kazoo checks the certificate; we let it check the host's name as well."""
    check = _switch(query.pop("check_hostname", "yes"), "check_hostname", shown)
    files = {theirs: query.pop(ours) for ours, theirs in TLS.items() if ours in query}
    return {"use_ssl": True, "check_hostname": check, **files}


def _switch(value: str, name: str, shown: str) -> bool:
    if value not in SWITCHES:
        raise Misuse(f"{shown}: {name} is yes or no")
    return SWITCHES[value]
