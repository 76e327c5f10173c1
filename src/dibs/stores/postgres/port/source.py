"""Where the database is and how to connect to it: read from a URL, or from a pool or engine that the caller has.

Nothing is sent here. What the caller's pool connects with is copied; its connections are left alone: a lock must not
end because a pool recycles one, nor be returned with it to somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dibs.errors import Misuse
from dibs.ports.url import Url, read
from dibs.stores.postgres.port.driver import pq, psycopg

OURS = {"connections", "pooler", "synchronous_commit", "max_locks"}
"""Options in the query of a URL that are not for libpq."""

_TLS_VERSIONS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")

_WORDS = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslnegotiation": ("postgres", "direct"),
    "sslcertmode": ("disable", "allow", "require"),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "ssl_min_protocol_version": _TLS_VERSIONS,
    "ssl_max_protocol_version": _TLS_VERSIONS,
    "target_session_attrs": ("any", "read-write", "primary", "prefer-standby", "standby", "read-only"),
    "load_balance_hosts": ("disable", "random"),
}
"""What libpq takes for its options. It says so itself only when it connects."""

_NUMBERS = (
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)

DEFAULTS = {
    "fallback_application_name": "dibs",
    # A server that is cut off is noticed in 9 s, not in two hours: before it gives up a session that holds locks.
    "keepalives_idle": "3",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "9000",
}


class Source(NamedTuple):
    """One database, on one server or on several of which one may write."""

    attempts: tuple[str, ...]
    """What libpq is given, in turn, until there is a connection."""
    shown: str
    """For messages: without a password."""

    def __repr__(self) -> str:
        return f"<Source {self.shown}>"


def from_url(url: str) -> tuple[Source, dict[str, str]]:
    """Read *url*, and the options in it that are ours."""
    found = read(url, needs_host=False, sockets=True)
    if found.hosts and found.query.keys() & {"host", "hostaddr"}:
        found.refuse("it names the host twice, once as an option")
    if "/" in found.raw_path[1:]:
        found.refuse("its path is the name of the database; write %2F for a / in that name")
    own = {name: value for name, value in found.query.items() if name in OURS}
    theirs = {name: value for name, value in found.query.items() if name not in OURS}
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    found.refuse_unknown({*OURS, *known})
    _check(found, theirs)
    ports = [str(host.port or "") for host in found.hosts]
    given = {
        "host": ",".join(host.name for host in found.hosts),
        "port": ",".join(ports) if any(ports) else "",
        "user": found.user,
        "password": found.password,
        "dbname": found.path[1:],
    }
    return _source({**{name: value for name, value in given.items() if value}, **theirs}), own


def _check(found: Url, theirs: Mapping[str, str]) -> None:
    """Refuse what libpq would refuse when it connects."""
    for name, value in theirs.items():
        if value not in _WORDS.get(name, (value,)):
            found.refuse(f"{name} must be one of {', '.join(_WORDS[name])}")
        if name in _NUMBERS and not re.fullmatch(r"-?[0-9]{1,9}", value):
            found.refuse(f"{name} must be a whole number")
    for port in theirs.get("port", "").split(","):
        if port and not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65_536):
            found.refuse("a port is a number from 1 to 65535")
    for name, place in (("user", found.user), ("password", found.password), ("dbname", found.path[1:])):
        if place and name in theirs:
            found.refuse(f"it names the {name} twice, once as an option")
    if "port" in theirs and any(host.port for host in found.hosts):
        found.refuse("it names the port twice, once as an option")


def from_client(client: Any, *, blocking: bool) -> Source:
    """Read what *client*, a connection or pool of psycopg or an engine of SQLAlchemy, connects to."""
    if hasattr(client, "url") and hasattr(client, "dialect"):
        return _source(_of_engine(client))
    if isinstance(client, psycopg.BaseConnection):
        known = client.info.get_parameters()
        return _source({**known, "password": client.info.password} if client.info.password else known)
    if not (hasattr(client, "conninfo") and hasattr(client, "kwargs")):
        raise Misuse(f"{type(client).__name__} is no pool or connection of psycopg, and no engine of SQLAlchemy")
    of_async = "Async" in type(client).__name__ or "Async" in "".join(kind.__name__ for kind in type(client).__mro__)
    if of_async == blocking:
        other = "dibs.connect" if blocking is False else "dibs.aio.connect"
        raise Misuse(f"{type(client).__name__} is {'async' if of_async else 'blocking'}; pass it to {other}")
    if callable(client.conninfo) or callable(client.kwargs):
        raise Misuse("this pool makes its connection string anew each time; give dibs a URL instead")
    return _source(psycopg.conninfo.conninfo_to_dict(client.conninfo, **_libpq_only(client.kwargs or {})))


def _of_engine(engine: Any) -> dict[str, Any]:
    url = engine.url
    if not url.drivername.startswith("postgresql"):
        raise Misuse(f"{url.drivername}: this engine is of another kind of database")
    named = {"host": url.host, "port": url.port, "user": url.username, "password": url.password, "dbname": url.database}
    return {name: str(value) for name, value in {**_libpq_only(url.query), **named}.items() if value is not None}


def _libpq_only(options: Mapping[str, Any]) -> dict[str, Any]:
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    return {name: value for name, value in options.items() if name in known}


def _source(options: Mapping[str, Any]) -> Source:
    """One attempt for each host: so one that does not answer costs only its share of the time."""
    hosts, addresses, ports = (str(options.get(name) or "").split(",") for name in ("host", "hostaddr", "port"))
    count = max(len(hosts), len(addresses))
    alone = {**DEFAULTS, **{name: value for name, value in options.items() if value is not None}}
    alone["client_encoding"] = "UTF8"
    if count > 1:
        alone.setdefault("target_session_attrs", "read-write")
    attempts = []
    for index in range(count):
        own = {"host": _at(hosts, index), "hostaddr": _at(addresses, index), "port": _at(ports, index)}
        attempts.append(psycopg.conninfo.make_conninfo("", **{**alone, **{k: v or None for k, v in own.items()}}))
    return Source(tuple(attempts), _shown(",".join(hosts), ",".join(ports), str(options.get("dbname") or "")))


def _at(values: list[str], index: int) -> str:
    return values[index] if len(values) > 1 else values[0]


def _shown(host: str | None, port: str, database: str) -> str:
    return f"postgresql://{host or ''}{':' + port if port.strip(',') else ''}/{database.lstrip('/')}"
