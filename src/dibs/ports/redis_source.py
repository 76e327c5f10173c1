"""Where the servers are and how to connect to them: read from a URL, or from a redis-py client or pool.

Nothing is sent here. What a caller's client is connected with (password, TLS, user, database) is copied; its own
connections and pool are left alone, since they retry, decode and block in their own way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

try:
    import hiredis  # noqa: F401 - the parser of both ports
    import redis
    import redis.asyncio
    import redis.asyncio.connection
    import redis.asyncio.sentinel
    import redis.connection
    import redis.sentinel
except ImportError as exc:
    raise ImportError("the Redis store needs redis-py and hiredis: pip install 'dibs[redis]'") from exc

from dibs.errors import Misuse


class Address(NamedTuple):
    """One server: host and port, or the path of a socket."""

    host: str
    port: int
    """0 for a path."""

    def __str__(self) -> str:
        if not self.port:
            return f"unix://{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Login(NamedTuple):
    """How to connect to a server, wherever it is: what redis-py's connection classes take."""

    connection_class: type[Any]
    options: Mapping[str, Any]


class Source(NamedTuple):
    """The servers of one store."""

    kind: str
    """``single``, ``sentinel`` or ``cluster``."""
    addresses: tuple[Address, ...]
    """The server, the sentinels, or some nodes of the cluster."""
    login: Login
    service: str = ""
    """What the sentinels call the master."""
    sentinel_login: Login | None = None


OURS = {"key", "min_replicas"}
"""Options in the query of a URL that are not for redis-py."""


def from_url(url: str, *, blocking: bool) -> tuple[Source, dict[str, str]]:
    """Read *url*, and the options in it that are ours."""
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    ours = {name: query.pop(name) for name in OURS & query.keys()}
    kind, scheme = _kind(parts.scheme)
    userinfo, at, hosts = parts.netloc.rpartition("@")
    try:
        nodes = tuple(_address(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(","))
    except ValueError as exc:  # not its text: it may have a part of the password
        problem = "no host with a port stands in it; special characters of a password are written as %2F and so on"
        raise Misuse(f"{shown(url)}: {problem}") from exc
    service, path = "", parts.path
    if kind == "sentinel":
        service, _, database = parts.path.strip("/").partition("/")
        service, path = unquote(service), f"/{database}"
        if not service:
            raise Misuse(f"{shown(url)}: the path names the service, as in redis+sentinel://host1,host2/mymaster/0")
    elif len(nodes) > 1 and kind == "single":
        raise Misuse(f"{shown(url)}: one server; several are redis+sentinel://, redis+cluster:// or redlock://")
    first = "" if scheme == "unix" else _hostport(nodes[0])
    plain = f"{scheme}://{userinfo}{at}{first}{path}"
    login = _login(plain + (f"?{urlencode(query)}" if query else ""), blocking=blocking)
    if kind == "cluster" and login.options.get("db"):
        raise Misuse(f"{shown(url)}: a cluster has database 0 only")
    if scheme == "unix":
        nodes = (Address(str(login.options.get("path", "")), 0),)
    sentinel_login = Login(login.connection_class, {k: v for k, v in login.options.items() if k.startswith("ssl")})
    return Source(kind, nodes, login, service, sentinel_login), ours


def from_client(client: Any, *, blocking: bool) -> Source:
    """Read where *client*, a client or pool of redis-py of the right colour, is connected to."""
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _from_cluster(client, blocking=blocking)
    pool = getattr(client, "connection_pool", client)
    if not isinstance(pool, redis.ConnectionPool | redis.asyncio.ConnectionPool):
        raise Misuse(f"{type(client).__name__} is no client or pool of redis-py that names one server or cluster")
    _check_colour(isinstance(pool, redis.ConnectionPool), client, blocking=blocking)
    login = Login(_plain(pool.connection_class), _options(pool.connection_kwargs))
    if not isinstance(pool, redis.sentinel.SentinelConnectionPool | redis.asyncio.sentinel.SentinelConnectionPool):
        return Source("single", (_address_in(pool.connection_kwargs),), login)
    if not pool.is_master:
        raise Misuse("this client talks to a replica, which cannot grant a lock; pass sentinel.master_for(…)")
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    nodes = tuple(_address_in(each.connection_kwargs) for each in pools)
    theirs = Login(_plain(pools[0].connection_class), _options(pools[0].connection_kwargs))
    return Source("sentinel", nodes, login, pool.service_name, theirs)


def shown(url: str) -> str:
    """*url* without its password, for messages."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else url


def _kind(scheme: str) -> tuple[str, str]:
    kinds = {
        "redis+sentinel": ("sentinel", "redis"),
        "rediss+sentinel": ("sentinel", "rediss"),
        "redis+cluster": ("cluster", "redis"),
        "rediss+cluster": ("cluster", "rediss"),
        "valkey": ("single", "redis"),
        "valkeys": ("single", "rediss"),
    }
    return kinds.get(scheme.lower(), ("single", scheme.lower()))


def _address(host: str, port: int) -> Address:
    parts = urlsplit(f"//{host}")
    return Address(unquote(parts.hostname or "localhost"), parts.port or port)


def _hostport(address: Address) -> str:
    return str(address)


def _login(url: str, *, blocking: bool) -> Login:
    """What redis-py reads in a URL of one server."""
    module: Any = redis.connection if blocking else redis.asyncio.connection
    try:
        options = dict(module.parse_url(url))
    except ValueError as exc:
        raise Misuse(f"{shown(url)}: {exc}") from exc
    login = Login(options.pop("connection_class", module.Connection), _options(options))
    try:
        login.connection_class(**login.options)  # it connects to nothing yet
    except TypeError as exc:
        unknown = str(exc).rpartition(" argument ")[2]
        raise Misuse(
            f"{shown(url)}: the option {unknown} is not known; there are {', '.join(sorted(OURS))} and those of "
            "redis-py's connections"
        ) from exc
    return login


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    without = {"host", "port", "connection_pool", "max_connections", "timeout", "response_callbacks"}
    return {name: value for name, value in options.items() if name not in without}


def _plain(connection_class: type[Any]) -> type[Any]:
    """The class without the sentinels in it: we ask them ourselves, in bounded time."""
    for name in ("SSLConnection", "Connection"):
        for module in (redis.sentinel, redis.asyncio.sentinel):
            if issubclass(connection_class, getattr(module, f"SentinelManaged{name}")):
                blocking = module is redis.sentinel
                plain: type[Any] = getattr(redis.connection if blocking else redis.asyncio.connection, name)
                return plain
    return connection_class


def _address_in(options: Mapping[str, Any]) -> Address:
    if options.get("path"):
        return Address(str(options["path"]), 0)
    return Address(str(options.get("host") or "localhost"), int(options.get("port") or 6379))


def _from_cluster(client: Any, *, blocking: bool) -> Source:
    is_blocking = isinstance(client, redis.RedisCluster)
    _check_colour(is_blocking, client, blocking=blocking)
    nodes = client.nodes_manager.startup_nodes.values()
    options = dict(client.nodes_manager.connection_kwargs if is_blocking else client.connection_kwargs)
    module: Any = redis.connection if is_blocking else redis.asyncio.connection
    named = options.pop("connection_class", module.Connection)
    options.pop("redis_connect_func", None)  # the cluster client's own, which prepares for reads from replicas
    login = Login(module.SSLConnection if options.pop("ssl", False) else named, _options(options))
    return Source("cluster", tuple(Address(node.host, int(node.port)) for node in nodes), login)


def _check_colour(theirs: bool, client: Any, *, blocking: bool) -> None:
    if theirs and not blocking:
        raise Misuse(f"{type(client).__name__} is a blocking client; in async code pass one of redis.asyncio")
    if blocking and not theirs:
        raise Misuse(f"{type(client).__name__} is a client of redis.asyncio; use dibs.aio, or pass a blocking one")
