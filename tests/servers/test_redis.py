"""The servers do what the tests that use them rely on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dibs.testing.proxy import FaultProxy
from servers.clock import Clock
from servers.node import Node
from servers.process import until
from servers.programs import program
from servers.redis import Persistence, RedisServer
from servers.resp import Resp, RespError

Start = Callable[..., RedisServer]


def test_both_kinds_answer(redis_or_valkey: RedisServer) -> None:
    """Each is the program it is called after."""
    facts = redis_or_valkey.info("server")
    assert redis_or_valkey.kind == ("valkey" if "valkey_version" in facts else "redis")


def test_shared_server_is_new_for_each_test(redis_server: RedisServer) -> None:
    """Keys, scripts, settings and even its death do not reach the next test."""
    redis_server.command("SET", "key", "value")
    script = redis_server.command("SCRIPT", "LOAD", "return 1")
    redis_server.config_set("maxmemory", "100mb")
    redis_server.reset()
    assert redis_server.command("DBSIZE") == 0
    assert redis_server.command("SCRIPT", "EXISTS", script) == [0]
    assert redis_server.command("CONFIG", "GET", "maxmemory") == ["maxmemory", "0"]
    for harm in redis_server.kill9, redis_server.stop:
        harm()
        redis_server.reset()
        assert redis_server.command("PING") == "PONG"


@pytest.mark.parametrize("persistence", ["none", "rdb", "aof", "aof-always"])
def test_restart_with_data(start_redis: Start, persistence: Persistence) -> None:
    """An orderly restart keeps everything, on the same port."""
    server = start_redis(persistence=persistence)
    server.command("SET", "key", "value")
    server.restart(keep_data=True)
    assert server.command("GET", "key") == "value"


@pytest.mark.parametrize("persistence", ["none", "aof-always"])
def test_restart_without_data(start_redis: Start, persistence: Persistence) -> None:
    """A server that comes back empty is one that lost its disk."""
    server = start_redis(persistence=persistence)
    server.command("SET", "key", "value")
    server.restart(keep_data=False)
    assert server.command("GET", "key") is None


@pytest.mark.parametrize(("persistence", "kept"), [("none", None), ("rdb", None), ("aof-always", "late")])
def test_crash(start_redis: Start, persistence: Persistence, kept: str | None) -> None:
    """After kill -9 there is what had been written to its file: all with an append-only file, else nothing."""
    server = start_redis(persistence=persistence)
    server.command("SET", "key", "late")
    server.kill9()
    with pytest.raises(ConnectionRefusedError):
        server.command("PING")
    server.start()
    assert server.command("GET", "key") == kept


def test_data_of_an_orderly_restart_does_not_survive_a_later_crash(start_redis: Start) -> None:
    """A server without persistence forgets all in a crash, also what a restart had once saved."""
    server = start_redis()
    server.command("SET", "key", "value")
    server.restart(keep_data=True)
    server.kill9()
    server.start()
    assert server.command("DBSIZE") == 0


def test_a_stopped_server_accepts_and_does_not_answer(redis_server: RedisServer) -> None:
    """Until it goes on; then it answers what was asked meanwhile."""
    redis_server.stop()
    with redis_server.client() as client:
        redis_server.cont()
        assert client("PING") == "PONG"


def test_password_and_users(start_redis: Start) -> None:
    """The default user needs the password, others have their rights."""
    server = start_redis(password="secret", users=["alice on >hers ~own:* +get"])
    with Resp(server.address) as client:
        with pytest.raises(RespError, match="NOAUTH"):
            client("GET", "key")
        assert client("AUTH", "secret") == "OK"
        assert client("SET", "own:key", 1) == "OK"
        assert client("AUTH", "alice", "hers") == "OK"
        assert client("GET", "own:key") == "1"
        with pytest.raises(RespError, match="NOPERM"):
            client("GET", "key")
    assert server.url == f"redis://:secret@127.0.0.1:{server.port}/0"
    assert server.url_for("alice", "hers", 3) == f"redis://alice:hers@127.0.0.1:{server.port}/3"


def test_tls(redis_tls: RedisServer) -> None:
    """Only those who trust the authority get in, and only by TLS."""
    assert redis_tls.command("PING") == "PONG"
    with Resp(redis_tls.address) as plain, pytest.raises(ConnectionError):
        plain("PING")


def test_replica(start_redis: Start) -> None:
    """A replica has what its master has."""
    master, replica = start_redis(), start_redis()
    master.command("SET", "early", 1)
    replica.replicate(master)
    with master.client() as client:
        client("SET", "late", 2)
        assert client("WAIT", 1, 5_000) == 1
    assert replica.command("MGET", "early", "late") == ["1", "2"]


def test_clock_shift(start_redis: Start, clock: Clock) -> None:
    """Keys end by the shifted wall clock, at once, and a clock that goes back gives them time."""
    server = start_redis(clock=clock)
    server.command("SET", "key", "value", "PX", 30_000)
    clock.shift(-60)
    assert 80_000 < server.command("PTTL", "key") <= 90_000
    clock.shift(60)
    assert server.command("EXISTS", "key") == 0


def test_proxy_before_a_server(redis_server: RedisServer, fault_proxy: Callable[[Node], FaultProxy]) -> None:
    """The reply to a script is lost, and the script has run."""
    proxy = fault_proxy(redis_server)
    proxy.drop_reply(to=b"EVAL")
    with Resp(proxy.address) as client, pytest.raises(ConnectionError):
        client("EVAL", "return redis.call('INCR', KEYS[1])", 1, "n")
    assert redis_server.command("GET", "n") == "1"


def test_no_server_outlives_the_test_run(tmp_path: Path) -> None:
    """A test run that is killed takes its servers with it."""
    program("redis-server")
    script = "from servers.redis import RedisServer; s = RedisServer().__enter__(); print(s.pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as run:
        assert run.stdout
        server = int(run.stdout.readline())
        assert exists(server)
        run.kill()
    until(lambda: not exists(server), "the server is gone")


def exists(pid: int) -> bool:
    """Whether it runs; in a container there may be nobody who buries the dead."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not stat.exists() or stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
