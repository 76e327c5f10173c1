"""Where the database is and how to connect to it: read from a URL, or from a pool or engine that the caller has.

Nothing is sent here. What the caller's pool connects with is copied; its connections are left alone: a lock must not
end because a pool recycles one, nor be returned with it to somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from dibs.errors import Misuse
from dibs.ports.postgres_driver import pq, psycopg

OURS = {"connections", "pooler", "synchronous_commit", "max_locks"}
"""Options in the query of a URL that are not for libpq."""

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


def from_url(url: str) -> tuple[Source, dict[str, str]]:
    """Read *url*, and the options in it that are ours."""
    parts = urlsplit(url)
    options: dict[str, str] = {}
    theirs = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in OURS:
            options[name] = value
        else:
            theirs.append(f"{quote(name)}={quote(value, safe='/')}")
    plain = f"postgresql://{parts.netloc}{parts.path}?{'&'.join(theirs)}"
    if url.partition(":")[2][:2] != "//":
        raise Misuse(f"{parts.scheme}: is followed by //, as in postgresql://user@host/database")
    try:
        found = psycopg.conninfo.conninfo_to_dict(plain)
    except psycopg.Error as exc:
        raise Misuse(f"{_shown(parts.hostname, '', parts.path)}: libpq does not understand this URL") from exc
    return _source(found), options


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
        raise Misuse(f"{type(client).__name__} is of the other colour; pass it to {other}")
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
