"""The blocking API at the edges of a process: fork, Ctrl-C, the end of the interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import dibs
from tempo import took

HEAD = """
import gc, os, signal, sys, threading, time
import dibs

url = sys.argv[1]
client = dibs.connect(url)
"""

FORK = """
lease = client.lock("a", ttl=0.8, note="parent").acquire()
pid = os.fork()
if pid == 0:
    try:
{child}
    except BaseException as error:
        import traceback
        traceback.print_exc()
        os._exit(3)
    {exit}
_, status = os.waitpid(pid, 0)
assert status == 0, f"the child ended with {{status}}"
time.sleep(0.9)  # longer than the ttl: somebody must have renewed it
lease.check()
with dibs.connect(url) as other:
    assert [(holder.name, holder.fence, holder.pid) for holder in other.holders()] == [("a", lease.fence, os.getpid())]
    assert other.lock("a").try_acquire() is None
    lease.release()
    assert other.holders() == []
print("the parent went on")
"""

CHILDREN = {
    "releases": """
        for use in (lease.release, lease.renew, lease.check, lease.detach, lease.__enter__):
            try:
                use()
            except dibs.Misuse as refused:
                assert f"belongs to process {os.getppid()}" in str(refused)
            else:
                raise AssertionError(f"{use} was not refused")
        """,
    "does nothing": "pass",
    "collects garbage": """
        del lease
        gc.collect()
        client = None
        gc.collect()
        """,
    "closes the client": "client.close()",
    "asks for the same lock": """
        assert client.lock("a").try_acquire() is None
        try:
            client.lock("a").acquire(timeout=0.3)
        except dibs.NotAcquired as refused:
            assert refused.holder.pid == os.getppid()
        """,
    "takes locks of its own": """
        with client.lock("b", ttl=0.8) as mine:
            time.sleep(0.9)
            mine.check()
            assert [holder.pid for holder in client.holders("b")] == [os.getpid()]
        assert client.holders("b") == []
        """,
    "leaves a lock of its own to its end": """
        mine = client.lock("b").acquire()
        """,
    "resumes the lease of its parent": """
        try:
            lease.to_str()
            client.resume(lease.to_str()).renew()
        except dibs.DibsError as refused:
            raise AssertionError(refused)
        time.sleep(0.1)
        """,
    "has a child": """
        pid = os.fork()
        if pid == 0:
            with client.lock("c"):
                pass
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        """,
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/dibs.db"


def script(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in an interpreter of its own, where every warning is an error."""
    quiet = ["-W", "error"]
    quiet += ["-W", "ignore:This process:DeprecationWarning"]  # 3.12 warns of fork with threads
    quiet += ["-W", "ignore:coroutine:RuntimeWarning"]  # Ctrl-C may come between making one and running it
    return subprocess.run(
        [sys.executable, *quiet, "-c", HEAD + code, *args], capture_output=True, text=True, timeout=30, check=False
    )


def assert_quiet(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.strip() == said


@pytest.mark.parametrize("how", ["sys.exit(0)", "os._exit(0)"])
@pytest.mark.parametrize("child", [name for name in CHILDREN if not name.startswith("resumes")])
def test_a_parent_still_holds_its_lock_when_a_child(child: str, how: str, url: str) -> None:
    body = textwrap.indent(textwrap.dedent(CHILDREN[child]).strip(), " " * 8)
    assert_quiet(script(FORK.format(child=body, exit=how), url), "the parent went on")


def test_a_child_that_was_given_the_lease_as_text_may_use_it(url: str) -> None:
    code = """
text = client.lock("a").acquire().detach()
pid = os.fork()
if pid == 0:
    lease = client.resume(text)
    assert [holder.pid for holder in client.holders()] == [os.getpid()]
    lease.release()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert client.holders() == []
"""
    assert_quiet(script(code, url), "")


def test_a_child_that_leaves_the_block_of_its_parent_does_not_end_it(url: str) -> None:
    code = """
with client.lock("a", ttl=0.8) as lease:
    pid = os.fork()
    if pid == 0:
        os.close(2)
        sys.exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.9)
    lease.check()
    assert [holder.fence for holder in client.holders()] == [lease.fence]
assert client.holders() == []
"""
    assert_quiet(script(code, url), "")


def test_a_child_that_ctrl_c_takes_out_of_the_block_of_its_parent_does_not_end_it(url: str) -> None:
    """In the first bytecode of `__exit__`: see test_blocking_ctrl_c.py."""
    code = """
import _thread

class Press:
    __delitem__ = staticmethod(_thread.interrupt_main)

press = Press()
blocks = client.lock("a"), client.lock("b").acquire(), client.all("c", "d"), client.election("e").lead()
for block in blocks:
    try:
        with block:
            if child := os.fork():
                assert os.waitpid(child, 0)[1] == 0
                held = {holder.pid for holder in client.holders()}
            else:
                del press[signal.SIGINT]
    except KeyboardInterrupt:
        client.close()  # tells the store what is to be told
        os._exit(0)
    assert held == {os.getpid()}, block
"""
    assert_quiet(script(code, url), "")


def test_a_fork_in_the_middle_of_a_renewal_harms_neither(url: str) -> None:
    code = """
from dibs.core.client import Client
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import open_store
from dibs.testing.contract.watched import Watched

runtime = ThreadRuntime()
wire = Watched(open_store(url, "default", runtime))
client = dibs.Client(Client(wire, runtime))
renewing = threading.Event()

async def slow(step, within):
    renewing.set()
    time.sleep(0.1)
    return await step()

wire.spoil_every("renew", slow)
lease = client.lock("a", ttl=1.5).acquire()
children = []
for _ in range(10):
    assert renewing.wait(5)
    renewing.clear()
    pid = os.fork()
    if pid == 0:
        wire.heal()
        signal.alarm(10)  # a child that hangs is a failure
        with client.lock(f"child {os.getpid()}", ttl=2) as mine:
            time.sleep(0.8)
            mine.check()
        try:
            lease.release()
        except dibs.Misuse:
            sys.exit(0)
        os._exit(3)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 10
lease.check()
lease.release()
"""
    assert_quiet(script(code, url), "")


WAITS = """
print("ready", flush=True)
try:
    with client.lock("a"):
        print("it ran", flush=True)
        for _ in range(2000):  # a sleep does not see a signal that comes just before it
            time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    state = client.show("a")
    assert os.getpid() not in [who.pid for who in (state.holder, *state.waiting) if who], state
    sys.stdin.readline()  # lives on: so it was not its death that freed the lock
"""


def interrupted(url: str, until: str) -> subprocess.Popen[str]:
    """Start a process that takes the lock, and press Ctrl-C when it has said *until*."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", HEAD + WAITS, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != until:
        assert process.poll() is None
    return process


def end(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate("\n", timeout=10)
    assert said.split("\n")[0] == "interrupted"
    assert process.returncode == 0


def test_ctrl_c_in_a_wait_leaves_no_ticket(url: str) -> None:
    with dibs.connect(url) as client, client.lock("a"):
        process = interrupted(url, "ready")
        deadline = time.monotonic() + 10
        while not client.show("a").waiting:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        end(process)


def test_ctrl_c_in_a_body_frees_the_lock(url: str) -> None:
    process = interrupted(url, "it ran")
    process.send_signal(signal.SIGINT)
    with dibs.connect(url) as client:
        client.lock("a").acquire(timeout=5).release()
    end(process)


ANY_MOMENT = """
import logging, random, traceback

logging.disable()  # a lease that an interrupt dropped is spoken of

def block(lock):
    with lock:
        pass

def take(lock):
    lock.acquire(timeout=1).release()

def interrupt(*_):
    global came
    came = True
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
other = dibs.connect(url)
quick = tried = rounds = 0
end = time.monotonic() + 3
while time.monotonic() < end:
    rounds += 1
    lock, work = client.lock(f"lock {rounds}", ttl=0.4, timeout=3), random.choice([block, take])
    came, where = False, "an interrupt that Python swallowed, in a finalizer"
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.0004))
        while True:  # with its condition here, the interrupt could come past this try: tests/test_loops.py
            if came:
                break
            work(lock)
    except KeyboardInterrupt as error:
        where = "".join(traceback.format_exception(error))
    began = time.monotonic()
    try:
        other.lock(lock.name).acquire(timeout=2).release()
        work(lock)
    except (dibs.NotAcquired, dibs.Misuse) as refused:
        sys.exit(f"{refused} after an interrupt here:\\n{where}")
    tried += 1
    quick += time.monotonic() - began < 0.2
assert tried > 20, tried
assert quick > 0.5 * tried, (quick, tried)
print("free each time")
"""


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_ctrl_c_at_any_moment_leaves_nothing_behind_for_longer_than_the_ttl(url: str, store: str) -> None:
    assert_quiet(script(ANY_MOMENT, url if store == "sqlite" else "memory:"), "free each time")


LOUD = """
from dibs.core.client import Client
from dibs.stores.memory.port.server import MemoryServer
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.memory.store import MemoryStore

class Loud(MemoryStore):
    async def release(self, name, token, within):
        print("released", name, flush=True)
        return await super().release(name, token, within)

runtime = ThreadRuntime()
loud = dibs.Client(Client(Loud(MemoryServer(runtime.now), "default", runtime), runtime))
"""


@pytest.mark.parametrize(
    "end",
    ["", "sys.exit(0)", "loop = [lease]; loop.append(loop)", "sys.modules['kept'] = lease"],
    ids=["falls off", "exits", "in a cycle", "in a module"],
)
def test_the_end_of_the_interpreter_gives_back_what_is_held(end: str, url: str) -> None:
    assert_quiet(script(f"{LOUD}\nlease = loud.lock('a').acquire()\n{end}", url), "released a")


def test_an_error_that_ends_the_interpreter_gives_back_what_is_held(url: str) -> None:
    done = script(f"{LOUD}\nlease = loud.lock('a').acquire()\nraise SystemExit(5)", url)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("released a", "", 5)


def test_a_lease_that_was_dropped_is_left_to_its_ttl_without_a_word(url: str) -> None:
    assert_quiet(script(f"{LOUD}\nloud.lock('a').acquire()\ngc.collect()", url), "")


def test_a_client_that_is_kept_to_the_last_says_nothing(url: str) -> None:
    assert_quiet(script("lease, threading.kept = client.lock('a').acquire(), client\ndel client", url), "")


def test_a_detached_lease_outlives_its_process(url: str) -> None:
    assert_quiet(script("client.lock('a', ttl=20).acquire().detach()", url), "")
    with dibs.connect(url) as client:
        assert [holder.name for holder in client.holders()] == ["a"]


def test_a_daemon_thread_that_waits_or_holds_does_not_keep_the_interpreter(url: str) -> None:
    code = """
lease = client.lock("a").acquire()
for work in (client.lock("a").acquire, client.lock("b").acquire):
    threading.Thread(target=work, daemon=True).start()
while not (client.show("a").waiting and client.show("b").holder):
    time.sleep(0.002)
print("the end")
"""
    with took(5):
        assert_quiet(script(code, url), "the end")


def test_a_store_that_hangs_cannot_hold_up_the_end_for_long(url: str) -> None:
    code = (
        LOUD
        + """
async def hang(name, token, within):
    time.sleep(within)
    raise dibs.OutcomeUnknown("loud", "it hangs")

loud._core._store.release = hang
leases = [loud.lock(f"{n}").acquire() for n in range(10)]
print("the end")
"""
    )
    with took(5):
        assert_quiet(script(code, url), "the end")


OUTLIVED = """
import subprocess

def elsewhere(code):
    head = "import sys, dibs; client = dibs.connect(sys.argv[1]); "
    return subprocess.run([sys.executable, "-c", head + code, url], check=True, capture_output=True, text=True).stdout

with client.lock("warm"):
    pass
reading, writing = os.pipe()
if os.fork():
    os._exit(0)
os.close(writing)
PARENT = os.getppid()
while os.getppid() == PARENT and PARENT != 1:
    time.sleep(0.005)
    PARENT = PARENT if os.path.exists(f"/proc/{PARENT}") else 0
elsewhere("client.holders(); client.close()")  # the last one, as far as it can see, tidies the log away
lease = client.lock("a").acquire(timeout=1)
assert elsewhere("print(client.lock('a').try_acquire())").strip() == "None"
elsewhere("client.close()")
lease.renew()
lease.release()
assert "held" in elsewhere("print(client.lock('a').try_acquire())")
print("it held alone", flush=True)
"""


def test_a_child_that_outlives_its_parent_holds_beside_nobody(url: str) -> None:
    assert_quiet(script(OUTLIVED, url), "it held alone")


FORKED_UNDER_LOAD = """
def work(client):
    while True:
        with client.lock("busy", ttl=5):
            pass

others = [client, dibs.connect(url)]
for each in others * 2:
    threading.Thread(target=work, args=(each,), daemon=True).start()
for round in range(30):
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # a child that hangs is a failure
        for each in others:
            with each.lock(f"child {round}", timeout=5):
                pass
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"child {round} ended with {status}"
print("each child went on", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_a_fork_waits_until_no_thread_is_in_the_middle_of_a_step(url: str, store: str) -> None:
    assert_quiet(script(FORKED_UNDER_LOAD, url if store == "sqlite" else "memory:"), "each child went on")


CLOSED_UNDER_LOAD = """
import logging
logging.disable()  # a block that was open says that its release was not delivered

def until_closed(client, name, why):
    try:
        while True:
            with client.lock(name, ttl=5):
                pass
    except dibs.Misuse as closed:
        why.append(str(closed))
    except dibs.StoreUnavailable as closed:
        why.append(str(closed))

for _ in range(20):
    client, other, why = dibs.connect(url), dibs.connect(url), []
    held = other.lock("held").acquire()
    threads = [threading.Thread(target=until_closed, args=(client, name, why)) for name in ["x", "x", "y", "held"]]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    client.close()
    held.release()
    for thread in threads:
        thread.join(10)
    assert len(why) == 4, why
    assert all("closed" in each for each in why), why
    other.close()
print("all were told")
"""


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_a_client_can_be_closed_while_threads_use_it(url: str, store: str) -> None:
    assert_quiet(script(CLOSED_UNDER_LOAD, url if store == "sqlite" else "memory:"), "all were told")


IN_A_HANDLER = """
refused = done = 0

def handle(*_):
    global refused, done
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with client.lock("b", timeout=0.01):
            done += 1
    except dibs.StoreUnavailable:
        refused += 1

signal.signal(signal.SIGALRM, handle)
while not (refused and done > 100):
    signal.setitimer(signal.ITIMER_REAL, 0.0001)
    for _ in range(20):
        with client.lock("a"):
            pass
print("it went on")
"""


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_a_signal_handler_may_use_the_client_that_it_interrupts(url: str, store: str) -> None:
    assert_quiet(script(IN_A_HANDLER, url if store == "sqlite" else "memory:"), "it went on")
