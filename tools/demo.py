"""Shows what dibs does with real processes on this machine: `make demo`. No server, under a minute."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

STARTED = time.monotonic()
GOT_IT = "has the lock"


class Process:
    """A `dibs` command whose lines are shown as they come, with the time and its name."""

    def __init__(self, who: str, command: str) -> None:
        self.who, self.got_it_at = who, 0.0
        show(who, f"$ {command}")
        self._process = subprocess.Popen(
            shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._got_it = threading.Event()
        self._reader = threading.Thread(target=self._show_lines, daemon=True)
        self._reader.start()

    def _show_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at = time.monotonic()
            show(self.who, line.rstrip())
            if GOT_IT in line:
                self.got_it_at = at
                self._got_it.set()
        self._got_it.set()  # it has ended: do not wait for it

    def until_it_has_the_lock(self) -> None:
        """Wait for its child to say so."""
        self._got_it.wait(10)
        if not self.got_it_at:
            sys.exit(f"{self.who} did not get the lock")

    def until_it_waits(self) -> None:
        """Wait until `dibs show` lists it as a waiter."""
        end = time.monotonic() + 10
        while str(self._process.pid) not in output("dibs show report"):
            if time.monotonic() > end:
                sys.exit(f"{self.who} did not queue within 10 s")

    def kill(self) -> float:
        """Kill it as hard as can be; return when."""
        show(self.who, f"*** kill -9 {self._process.pid} ***")
        at = time.monotonic()
        self._process.send_signal(signal.SIGKILL)
        return at

    def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        code = self._process.wait()
        self._reader.join(1)
        return code


def output(command: str) -> str:
    """What a command prints."""
    return subprocess.run(shlex.split(command), capture_output=True, text=True, check=True).stdout


def show(who: str, line: str) -> None:
    """One line of the story."""
    print(f"{time.monotonic() - STARTED:6.2f} s  {who:>6} | {line}", flush=True)


def scene(title: str) -> None:
    """Announce what comes."""
    print(f"\n--- {title}\n", flush=True)


def work(seconds: float) -> str:
    """The command that the lock guards."""
    return f"sh -c 'echo {GOT_IT}, fence $DIBS_FENCE; exec sleep {seconds}'"


def one_at_a_time_in_arrival_order() -> None:
    """Three processes want the same name."""
    scene("Three processes want the same lock. One has it, the others wait, first come first served.")
    first = Process("first", f"dibs run report --note 'nightly report' -- {work(3)}")
    first.until_it_has_the_lock()
    others = []
    for who in ("second", "third"):
        others.append(Process(who, f"dibs run report -- {work(0.5)}"))
        others[-1].until_it_waits()
    Process("you", "dibs ls").ended()
    line = [first, *others]
    for process in line:
        process.ended()
    if sorted(line, key=lambda process: process.got_it_at) != line:
        sys.exit("they were not served in arrival order")


def a_killed_holder_does_not_block() -> None:
    """Kill the holder; the next gets in at once."""
    scene("The holder is killed. Its lease had 30 s to go, but the next gets in at once.")
    holder = Process("holder", f"dibs run report -- {work(60)}")
    holder.until_it_has_the_lock()
    waiter = Process("next", f"dibs run report -- {work(0.2)}")
    waiter.until_it_waits()
    killed_at = holder.kill()
    waiter.until_it_has_the_lock()
    show("next", f"... {(waiter.got_it_at - killed_at) * 1000:.0f} ms after the kill, counting its own start")
    holder.ended(), waiter.ended()


def not_now() -> None:
    """Somebody who does not want to wait."""
    scene("Who does not want to wait is told who has it, and exits with 75.")
    holder = Process("holder", f"dibs run report --note 'nightly report' -- {work(60)}")
    holder.until_it_has_the_lock()
    code = Process("hasty", "dibs run --no-wait report -- echo never").ended()
    show("hasty", f"exit code {code}")
    holder.kill()
    holder.ended()
    if code != 75:
        sys.exit("somebody who did not want to wait got in")


def main() -> None:
    """Play all scenes on a store of their own."""
    with tempfile.TemporaryDirectory(prefix="dibs-demo-") as there:
        os.environ.pop("DIBS_NAMESPACE", None)
        os.environ["DIBS_URL"] = f"sqlite://{there}/locks.db"
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        one_at_a_time_in_arrival_order()
        a_killed_holder_does_not_block()
        not_now()
    print("\nYour turn:  .venv/bin/dibs run NAME -- COMMAND    .venv/bin/dibs --help")


if __name__ == "__main__":
    main()
