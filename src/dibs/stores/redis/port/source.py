"""Where the servers are and how to connect to them: read from a URL, or from a redis-py client or pool.

Nothing is sent here. What a caller's client is connected with (password, TLS, user, database) is copied; its own
connections and pool are left alone, since they retry, decode and block in their own way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

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
from dibs.ports.url import Url, read


class RedisAddress(NamedTuple):
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

    def __repr__(self) -> str:
        return f"<Login {self.connection_class.__name__}>"  # a password is among the options


class RedisSource(NamedTuple):
    """The servers of one store."""

    kind: str
    """``single``, ``sentinel`` or ``cluster``."""
    addresses: tuple[RedisAddress, ...]
    """The server, the sentinels, or some nodes of the cluster."""
    login: Login
    service: str = ""
    """What the sentinels call the master."""
    sentinel_login: Login | None = None


OURS = ("key", "min_replicas")
"""Options in the query of a URL that are not for redis-py."""

_SWITCHES = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}

_TEXTS = ("client_name", "username", "password")

_TLS_TEXTS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_ciphers",
)

_TLS = ("ssl_cert_reqs", "ssl_check_hostname", *_TLS_TEXTS)

OF_SENTINELS = "sentinel_"
"""What the options for the sentinels begin with."""

_OF_SENTINELS = tuple(OF_SENTINELS + name for name in ("username", "password", "tls", *_TLS))

_CERT_REQS = ("required", "optional", "none")

_IGNORED = (
    "socket_timeout",
    "socket_connect_timeout",
    "retry_on_timeout",
    "health_check_interval",
    "decode_responses",
    "max_connections",
    "protocol",
    "timeout",
)
"""What URLs for redis-py often have. Ours are set for each step."""


def from_url(url: str, *, blocking: bool) -> tuple[RedisSource, dict[str, str]]:
    """Read *url*, and the options in it that are ours."""
    scheme = url.partition(":")[0].lower()
    kind, plain = _kind(scheme)
    found = read(url, needs_host=plain != "unix")
    own = {name: value for name, value in found.query.items() if name in OURS}
    nodes = tuple(RedisAddress(host.name, host.port or (26379 if kind == "sentinel" else 6379)) for host in found.hosts)
    service, path = "", found.path
    if plain == "unix":
        if found.hosts or len(path.rstrip("/")) < 2:
            found.refuse("write the path of the socket after three slashes, as in unix:///run/redis/socket?db=0")
        nodes, path = (RedisAddress(path, 0),), ""
    elif kind == "sentinel":
        service, _, database = found.raw_path.strip("/").partition("/")
        service, path = unquote(service), f"/{database}"
        if not service:
            found.refuse("its path must name the service, as in redis+sentinel://host1,host2/mymaster/0")
    elif len(nodes) > 1 and kind == "single":
        found.refuse("it must name one server; for several write redis+sentinel://, redis+cluster:// or redlock://")
    if kind == "sentinel":
        found, sentinel_login = _sentinel_login(found, plain, blocking=blocking)
    else:
        sentinel_login = None
    login = _login(found, plain, path, blocking=blocking, others=_OF_SENTINELS if kind == "sentinel" else ())
    if kind == "cluster" and login.options.get("db"):
        found.refuse("a cluster has database 0 only")
    return RedisSource(kind, nodes, login, service, sentinel_login), own


def from_client(client: Any, *, blocking: bool) -> RedisSource:
    """Read where *client*, a client or pool of redis-py, is connected to; it has to be a blocking one if *blocking*."""
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _from_cluster(client, blocking=blocking)
    pool = getattr(client, "connection_pool", client)
    if not isinstance(pool, redis.ConnectionPool | redis.asyncio.ConnectionPool):
        raise Misuse(f"{type(client).__name__} is no client or pool of redis-py that names one server or cluster")
    _check_colour(isinstance(pool, redis.ConnectionPool), client, blocking=blocking)
    login = Login(_plain(pool.connection_class), _options(pool.connection_kwargs))
    if not isinstance(pool, redis.sentinel.SentinelConnectionPool | redis.asyncio.sentinel.SentinelConnectionPool):
        return RedisSource("single", (_address_in(pool.connection_kwargs),), login)
    if not pool.is_master:
        raise Misuse("this client talks to a replica, which cannot grant a lock; pass sentinel.master_for(…)")
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    nodes = tuple(_address_in(each.connection_kwargs) for each in pools)
    theirs = Login(_plain(pools[0].connection_class), _options(pools[0].connection_kwargs))
    return RedisSource("sentinel", nodes, login, pool.service_name, theirs)


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


def _sentinel_login(found: Url, scheme: str, *, blocking: bool) -> tuple[Url, Login]:
    """The URL without the options for the sentinels, and how to connect to those: with TLS if the servers have it."""
    theirs = {name.removeprefix(OF_SENTINELS): found.query[name] for name in _OF_SENTINELS if name in found.query}
    rest = {name: value for name, value in found.query.items() if name not in _OF_SENTINELS}
    asked = found._replace(query=theirs)
    secure = _switch(found, f"{OF_SENTINELS}tls") if "tls" in theirs else scheme == "rediss"
    shared = {name: value for name, value in rest.items() if name in _TLS} if secure and scheme == "rediss" else {}
    query = {**shared, **theirs}
    query.pop("tls", None)
    if not secure and query.keys() & set(_TLS):
        found.refuse(f"{OF_SENTINELS}ssl_… needs sentinels with TLS; write {OF_SENTINELS}tls=yes too")
    asked = asked._replace(user="", password="", query=query)
    return found._replace(query=rest), _login(asked, "rediss" if secure else "redis", "", blocking=blocking)


def _login(found: Url, scheme: str, path: str, *, blocking: bool, others: Sequence[str] = ()) -> Login:
    """The login for the URL of one server, read by redis-py; *others* are options that were read before."""
    module: Any = redis.connection if blocking else redis.asyncio.connection
    names = {"redis": "Connection", "rediss": "SSLConnection", "unix": "UnixDomainSocketConnection"}
    tls = _TLS if scheme == "rediss" else ()
    known = {*OURS, *others, *_TEXTS, *_IGNORED, *tls, "db", *(("socket_keepalive",) if scheme != "unix" else ())}
    found.refuse_unknown(known, "" if tls else "; those of TLS need rediss://")
    options: dict[str, Any] = {name: found.query[name] for name in (*_TEXTS, *tls) if name in found.query}
    for name, value in (("username", found.user), ("password", found.password)):
        if value and name in options:
            found.refuse(f"it names the {name} twice")
        if value:
            options[name] = value
    for name in ("socket_keepalive", "ssl_check_hostname"):
        if name in found.query:
            options[name] = _switch(found, name)
    if found.query.get("ssl_cert_reqs", "none") not in _CERT_REQS:
        found.refuse(f"ssl_cert_reqs must be one of {', '.join(_CERT_REQS)}")
    if options.get("ssl_cert_reqs") == "none":
        options.setdefault("ssl_check_hostname", False)
    if database := _database(found, path):
        options["db"] = database
    login = Login(getattr(module, names[scheme]), options)
    try:
        login.connection_class(**options)  # it connects to nothing yet
    except (TypeError, ValueError, redis.RedisError):
        taken = False
    else:
        taken = True
    if not taken:  # not from its error, which may quote a password
        found.refuse("the installed version of redis-py does not take these options together")
    return login


def _switch(found: Url, name: str) -> bool:
    value = _SWITCHES.get(found.query[name].lower())
    if value is None:
        found.refuse(f"{name} is yes or no")
    return value


def _database(found: Url, path: str) -> int:
    texts = [text for text in (path.strip("/"), found.query.get("db", "")) if text]
    if len(texts) > 1:
        found.refuse("it names the database twice; write it once, as in redis://host/0")
    if texts and not (texts[0].isascii() and texts[0].isdecimal() and len(texts[0]) < 10):
        found.refuse("a database of Redis is a number, as in redis://host/0")
    return int(texts[0]) if texts else 0


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


def _address_in(options: Mapping[str, Any]) -> RedisAddress:
    if options.get("path"):
        return RedisAddress(str(options["path"]), 0)
    return RedisAddress(str(options.get("host") or "localhost"), int(options.get("port") or 6379))


def _from_cluster(client: Any, *, blocking: bool) -> RedisSource:
    is_blocking = isinstance(client, redis.RedisCluster)
    _check_colour(is_blocking, client, blocking=blocking)
    nodes = client.nodes_manager.startup_nodes.values()
    options = dict(client.nodes_manager.connection_kwargs if is_blocking else client.connection_kwargs)
    module: Any = redis.connection if is_blocking else redis.asyncio.connection
    named = options.pop("connection_class", module.Connection)
    options.pop("redis_connect_func", None)  # the cluster client's own, which prepares for reads from replicas
    login = Login(module.SSLConnection if options.pop("ssl", False) else named, _options(options))
    return RedisSource("cluster", tuple(RedisAddress(node.host, int(node.port)) for node in nodes), login)


def _check_colour(theirs: bool, client: Any, *, blocking: bool) -> None:
    if theirs and not blocking:
        raise Misuse(f"{type(client).__name__} is a blocking client; in async code pass one of redis.asyncio")
    if blocking and not theirs:
        raise Misuse(f"{type(client).__name__} is a client of redis.asyncio; use dibs.aio, or pass a blocking one")
