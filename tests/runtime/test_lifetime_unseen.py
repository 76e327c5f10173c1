"""A fork that Python was not told of: libc's own, as C code and uWSGI do it. Whoever uses a client notices it."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dibs
from servers.ports import Port
from servers.process import Process

HEAD = """
import ctypes, fcntl, gc, os, signal, sys, threading, time
import dibs

fork = ctypes.PyDLL(None).fork
url = sys.argv[1]
client = dibs.connect(url)

def at_rest():
    # Python itself does not survive a C fork while another thread waits for its turn, so the keeper has to sleep.
    while client._core._context.keeper._job is not None and client._core._context.keeper._napping_until < 0:
        time.sleep(0.01)
    time.sleep(0.1)
"""


def script(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in an interpreter of its own, where every warning is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", HEAD + code, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_quiet(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.strip() == said


TOGETHER = """
PRIVATE = url.startswith("memory")
held = client.lock("held", ttl=3).acquire()
at_rest()
place = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)

def child():
    global mine
    for use in (held.check, held.renew, held.release):
        try:
            use()
        except dibs.Misuse as refused:
            assert f"belongs to process {os.getppid()}" in str(refused)
        else:
            raise AssertionError(f"{use} was not refused")
    assert client.lock("held").try_acquire() is None
    for _ in range(20):
        with client.lock("hot", ttl=10, timeout=30):
            inside = os.open(sys.argv[2], os.O_RDWR)
            fcntl.flock(inside, fcntl.LOCK_EX | (0 if PRIVATE else fcntl.LOCK_NB))  # BlockingIOError: two are inside
            os.pwrite(inside, str(int(os.pread(inside, 9, 0) or 0) + 1).encode(), 0)
            os.close(inside)
    mine = client.lock(f"kept by {os.getpid()}", ttl=1).acquire()  # given back at the end
    left = mine.expires_in()
    while (before := left) >= (left := mine.expires_in()):  # a keeper of its own renews it
        mine.check()
        time.sleep(0.01)

children = []
for _ in range(3):
    pid = fork()
    if pid == 0:
        signal.alarm(40)  # a child that hangs is a failure
        child()
        sys.exit(0)  # with all that happens at the end of an interpreter; what it holds is given back
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 3
assert int(os.pread(place, 9, 0)) == 60
held.renew()
assert [holder.name for holder in client.holders()] == ["held"]
held.release()
assert client.holders() == []
print("each for itself")
"""


def test_a_client_that_holds_before_the_fork_is_a_new_one_in_each_child(every_store: str, tmp_path: Path) -> None:
    assert_quiet(script(TOGETHER, every_store, f"{tmp_path}/count"), "each for itself")


ENDED = """
endings = {
    "falls off": lambda: None,
    "exits": lambda: sys.exit(0),
    "collects garbage": lambda: (globals().update(held=None, block=None, client=None), gc.collect()),
    "closes the client": lambda: client.close(),
    "leaves a block": lambda: block.__exit__(None, None, None),
    "forks as Python does": lambda: os.waitpid(os.fork() or os._exit(0), 0),
}
held, block = client.lock("held", ttl=3).acquire(), client.lock("block", ttl=3)
block.__enter__()
at_rest()
for ending in endings.values():
    pid = fork()
    if pid == 0:
        signal.alarm(40)  # a child that hangs is a failure
        try:
            ending()
        except dibs.Misuse:
            pass
        sys.exit(0)  # with all that happens at the end of an interpreter
    assert os.waitpid(pid, 0)[1] == 0
held.renew()
with dibs.connect(url) as other:
    look = client if url.startswith("memory") else other
    assert [holder.name for holder in look.holders()] == ["block", "held"]
block.__exit__(None, None, None)
held.release()
assert client.holders() == []
print("untouched")
"""


def test_a_child_that_did_not_use_the_client_does_its_parent_no_harm(every_store: str) -> None:
    assert_quiet(script(ENDED, every_store), "untouched")


IN_A_LOOP = """
import asyncio
import dibs.aio

loop, client = asyncio.new_event_loop(), dibs.aio.connect(url)
held = loop.run_until_complete(client.lock("held", ttl=10).acquire())
for _ in range(20):
    loop.run_until_complete(asyncio.sleep(0.005))  # all threads have come to rest

async def child():
    assert await client.lock("held").try_acquire() is None
    for _ in range(20):
        async with client.lock("hot", ttl=10, timeout=30):
            pass
    try:
        await held.release()
    except dibs.Misuse as refused:
        assert f"belongs to process {os.getppid()}" in str(refused)
    else:
        raise AssertionError("the parent's lease was given back")
    await client.close()

children = []
for _ in range(2):
    pid = fork()
    if pid == 0:
        signal.alarm(40)
        try:
            asyncio.run(child())
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 2

async def parent():
    await held.renew()
    assert [holder.name for holder in await client.holders()] == ["held"]
    await held.release()
    await client.close()

loop.run_until_complete(parent())
loop.close()
print("each for itself")
"""


def test_a_client_of_an_event_loop_is_a_new_one_in_each_child(every_store: str) -> None:
    assert_quiet(script(IN_A_LOOP, every_store), "each for itself")


OUTLIVED = """
import subprocess

def elsewhere(code):
    head = "import sys, dibs; client = dibs.connect(sys.argv[1]); "
    return subprocess.run([sys.executable, "-c", head + code, url], check=True, capture_output=True, text=True).stdout

with client.lock("warm"):
    pass
parent = os.getpid()
if fork():
    os._exit(0)
while os.path.exists(f"/proc/{parent}") and os.getppid() == parent:
    time.sleep(0.005)
elsewhere("client.holders(); client.close()")  # the last one, as far as it can see, tidies the log away
try:
    lease = client.lock("a").acquire(timeout=10)
except dibs.StoreUnavailable as refused:  # before Python 3.12, when others have tidied the log away
    assert "forked" in str(refused)
    print("it was refused", flush=True)
    os._exit(0)
assert elsewhere("print(client.lock('a').try_acquire())").strip() == "None"
elsewhere("client.close()")
lease.renew()
lease.release()
assert "held" in elsewhere("print(client.lock('a').try_acquire())")
print("it held alone", flush=True)
"""


def test_a_child_that_outlives_its_parent_holds_beside_nobody(tmp_path: Path) -> None:
    """SQLite takes the parent's locks for this process's as long as the inherited connection is open."""
    alone = "it held alone" if sys.version_info >= (3, 12) else "it was refused"
    assert_quiet(script(OUTLIVED, f"sqlite:///{tmp_path}/dibs.db"), alone)


IN_A_STEP = """
from dibs.runtime import run

port = client._core._store._port
inside, go_on = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: run(port.call(60, lambda db: (inside.set(), go_on.wait()))), daemon=True)
thread.start()
inside.wait()
time.sleep(0.1)
pid = fork()
if pid == 0:
    signal.alarm(40)
    for each in (client, dibs.connect(url)):
        try:
            each.holders()
        except dibs.StoreUnavailable as refused:
            assert "forked" in str(refused), refused
        else:
            raise AssertionError("it was opened beside a connection of the parent")
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
go_on.set()
client.lock("a", timeout=10).acquire().release()
print("refused")
"""


def test_sqlite_is_refused_in_a_child_that_was_forked_in_the_middle_of_a_step(tmp_path: Path) -> None:
    assert_quiet(script(IN_A_STEP, f"sqlite:///{tmp_path}/dibs.db"), "refused")


APP = """
import os
import dibs

client = dibs.connect(os.environ["STORE"])
master, held = os.getpid(), client.lock("held", ttl=60).acquire()
while client._core._context.keeper._job is not None and client._core._context.keeper._napping_until < 0:
    os.sched_yield()

def application(environ, start):
    try:
        held.check()
    except dibs.Misuse:
        refused = os.getpid() != master
    with client.lock("hot", ttl=10, timeout=30):
        with open(os.environ["COUNT"], "r+") as file:
            count = int(file.read() or 0) + 1
            file.seek(0)
            file.write(str(count))
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{refused} {os.getpid()}".encode()]
"""


@pytest.fixture
def uwsgi(every_store: str, tmp_path: Path) -> Iterator[str]:
    """Where uWSGI with two workers answers, which it forks in its default way after it has loaded the program."""
    if every_store == "memory:":
        pytest.skip("the workers of a server share no memory")
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "count").write_text("0")
    port = Port()
    address = f"127.0.0.1:{port.number}"
    command = [f"{sys.prefix}/bin/uwsgi", "--master", "--processes", "2", "--http-socket", address, "--die-on-term"]
    command += ["--wsgi-file", f"{tmp_path}/app.py", "--virtualenv", sys.prefix, "--need-app", "--listen", "10"]
    environment = {**os.environ, "STORE": every_store, "COUNT": f"{tmp_path}/count"}
    process = Process(command, tmp_path / "log", environment)
    try:
        process.until(lambda: urllib.request.urlopen(f"http://{address}/").status == 200)
        yield f"http://{address}/"
    finally:
        process.kill()
        port.give_back()


def test_the_workers_of_uwsgi_share_locks_and_no_connection(uwsgi: str, every_store: str, tmp_path: Path) -> None:
    def ask(_: int) -> str:
        with urllib.request.urlopen(uwsgi, timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    (tmp_path / "count").write_text("0")
    with ThreadPoolExecutor(4) as callers:
        answers = Counter(callers.map(ask, range(60)))
    assert {answer.split()[0] for answer in answers} == {"True"}
    assert len(answers) == 2, "both workers answered"
    assert (tmp_path / "count").read_text() == "60"
    with dibs.connect(every_store) as client:
        assert [holder.name for holder in client.holders()] == ["held"]
