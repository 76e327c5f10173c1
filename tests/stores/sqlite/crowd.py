"""Several processes that use one file of the embedded store, each doing what it is told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import Ask, Busy, Grant
from dibs.stores.sqlite.store import open_url

CHILD = """
import gc, json, os, sqlite3, subprocess, sys
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import Ask, Claim, Grant
from dibs.stores.sqlite.store import open_url
runtime = ThreadRuntime()
store = open_url(sys.argv[1], "", runtime)
runtime.after_fork(store.forked)
def ask(name, token, queue=False, ttl=30.0):
    answer = run(store.grant(Ask(name, token, ttl, "", queue), 5.0))
    return answer.fence if isinstance(answer, Grant) else 0
def take(name, token):
    one = Ask(name, token, 30.0, "", True)
    while not isinstance(answer := run(store.grant(one, 5.0)), Grant):
        run(store.wait(one, answer, 5.0))
    return answer.fence
def release(name, token):
    return run(store.release(name, token, 5.0))
def refusal(work):
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def in_child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
            gc.collect()
            sys.exit()
        except SystemExit:
            raise
        except BaseException:
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
forked = []
print(json.dumps("ready"), flush=True)
while line := sys.stdin.readline():
    print(json.dumps(eval(line)), flush=True)
"""


class Child:
    """Another process, which does what it is told, one expression after the other."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD, f"sqlite://{path}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.answer() == "ready"

    def send(self, expression: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def do(self, expression: str) -> Any:
        self.send(expression)
        return self.answer()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Crowd:
    """The processes of one test."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "locks.db"
        self._children: list[Child] = []
        self.store = open_url(f"sqlite://{self.path}", "", ThreadRuntime())
        self.ask("warm", "warm")

    def child(self) -> Child:
        child = Child(self.path)
        self._children.append(child)
        return child

    def ask(self, name: str, token: str, *, queue: bool = False, within: float = 5.0) -> Grant | Busy:
        return run(self.store.grant(Ask(name, token, 30.0, "", queue), within))

    def wait_until(self, true: Callable[[], bool]) -> None:
        until = time.monotonic() + 10
        while not true():
            assert time.monotonic() < until
            time.sleep(0.002)

    def wait_for_line(self, length: int, name: str = "x") -> None:
        self.wait_until(lambda: len(run(self.store.show(name, 5.0)).waiting) == length)

    def end(self) -> None:
        for child in self._children:
            child.end()
        run(self.store.close())
