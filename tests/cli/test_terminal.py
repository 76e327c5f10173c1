"""A real terminal: who is in its foreground, Ctrl-C, Ctrl-Z with fg and bg, and a new size of the window."""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from .processes import DIBS, Sandbox, alive, state, until

IN_FRONT = "import os; print('in front:', os.tcgetpgrp(0) == os.getpgrp())"


class Pty:
    """A terminal with a program that leads its session, and a keyboard."""

    def __init__(self, box: Sandbox, program: list[str]) -> None:
        self._master, slave = os.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            program,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=box.directory,
            env={**box.env, "PS1": "$ ", "ENV": ""},
            start_new_session=True,
            preexec_fn=_as_a_login,  # noqa: PLW1509 - no threads here
        )
        os.close(slave)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def read(self) -> str:
        """All that was written to the screen until now."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # EIO: everybody has closed it
                break
            self.seen += data.decode()
        return self.seen.replace("\r\n", "\n")

    def shows(self, text: str, times: int = 1) -> None:
        until(lambda: self.read().count(text) >= times, f"{text!r} on the screen")

    def resize(self) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))

    def end(self) -> int:
        """Wait until the program has ended."""
        until(lambda: (self.read(), self.process.poll() is not None)[1], "the end")
        return int(self.process.returncode)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def _as_a_login() -> None:
    """What a new terminal's first process finds: the terminal is its own, and a hangup counts, under nohup too."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminals:
    """Opens terminals and closes them all."""

    def __init__(self, box: Sandbox) -> None:
        self._box, self._open = box, list[Pty]()

    def dibs(self, *args: str) -> Pty:
        """With dibs as the only program, as ``ssh -t host dibs run …`` has it."""
        return self._opened([*DIBS, *args])

    def shell(self) -> Pty:
        """With a shell that has job control."""
        pty = self._opened(["/bin/sh", "-i"])
        pty.shows("$ ")
        return pty

    def _opened(self, program: list[str]) -> Pty:
        self._open.append(Pty(self._box, program))
        return self._open[-1]

    def close(self) -> None:
        for pty in self._open:
            pty.close()


@pytest.fixture
def terminals(box: Sandbox) -> Iterator[Terminals]:
    opened = Terminals(box)
    yield opened
    opened.close()


def run(*args: str) -> str:
    """The line to type for `dibs run`."""
    return shlex.join([*DIBS, "run", "x", *args])


def wrapper_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def test_the_command_is_in_the_foreground(terminals: Terminals) -> None:
    pty = terminals.dibs("run", "x", "--", sys.executable, "-c", IN_FRONT)
    assert pty.end() == 0
    assert "in front: True" in pty.seen


def test_ctrl_c_reaches_the_command(terminals: Terminals, box: Sandbox) -> None:
    pty = terminals.dibs("run", "x", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
    pid = box.pid("pid")
    pty.type("\x03")
    assert pty.end() == 130
    assert not alive(pid)
    assert box.holder("x") is None


def test_a_command_may_survive_ctrl_c(terminals: Terminals, box: Sandbox) -> None:
    script = "trap 'echo not yet' INT; echo ready; read -r line; read -r line; echo got $line"
    pty = terminals.dibs("run", "x", "--", "sh", "-c", script)
    pty.shows("ready")
    pty.type("\x03")
    pty.shows("not yet")
    pty.type("hello\n")
    pty.type("hello\n")
    assert pty.end() == 0


def test_the_keyboard_reaches_the_command(terminals: Terminals) -> None:
    pty = terminals.dibs("run", "x", "--", "sh", "-c", "echo ready; read -r line; echo got $line")
    pty.shows("ready")
    pty.type("some words\n")
    assert pty.end() == 0
    assert "got some words" in pty.seen


def test_a_new_size_of_the_window_reaches_the_command(terminals: Terminals) -> None:
    pty = terminals.dibs(
        "run", "x", "--", "sh", "-c", "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.02; done"
    )
    pty.shows("ready")
    pty.resize()
    assert pty.end() == 3
    assert "33 77" in pty.seen


def test_ctrl_c_while_waiting_ends_the_wait(terminals: Terminals, box: Sandbox) -> None:
    box.dibs("acquire", "x")
    pty = terminals.dibs("run", "x", "--", "true")
    until(lambda: box.waiting("x"))
    pty.type("\x03")
    assert pty.end() == 130
    assert box.waiting("x") == []


def test_ctrl_z_where_nobody_could_continue_is_no_trap(terminals: Terminals, box: Sandbox) -> None:
    """Without a shell above, a stopped job would stand still for ever, and hold its lock until the ttl."""
    pty = terminals.dibs("run", "x", "--", "sh", "-c", "echo $$ > pid; read -r line; echo got $line")
    box.pid("pid")
    pty.type("\x1a")
    pty.type("on\n")
    assert pty.end() == 0
    assert "got on" in pty.seen


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_continues(terminals: Terminals, box: Sandbox) -> None:
    pty = terminals.shell()
    pty.type(run("--", "sh", "-c", "echo $$ > pid; read -r line; echo got $line") + "\n")
    pid = box.pid("pid")
    pty.type("\x1a")
    until(lambda: state(pid) == state(wrapper_of(pid)) == "T", "the stop of both")
    pty.type("echo shell is $((40 + 2))\n")
    pty.shows("shell is 42")
    pty.type("fg\n")
    until(lambda: state(pid) == "S", "the command")
    pty.type("some words\n")
    pty.shows("got some words")
    pty.type("echo code $?\n")
    pty.shows("code 0")
    assert box.holder("x") is None


def test_a_lease_that_was_lost_while_stopped_ends_the_command_on_fg(terminals: Terminals, box: Sandbox) -> None:
    pty = terminals.shell()
    pty.type(run("--ttl", "0.8", "--", "sh", "-c", "echo $$ > pid; read -r line; echo got $line") + "\n")
    pid = box.pid("pid")
    pty.type("\x1a")
    until(lambda: state(wrapper_of(pid)) == "T", "the stop")
    assert box.dibs("run", "-w", "10", "x", "--", "true").returncode == 0
    pty.type("fg\n")
    pty.shows("was lost")
    until(lambda: not alive(pid))
    pty.type("echo code $?\n")
    pty.shows("code 76")


def test_bg_lets_it_run_and_a_read_from_the_keyboard_stops_it_again(terminals: Terminals, box: Sandbox) -> None:
    # It waits by itself. A dash that is stopped while it starts another program (in vfork) never shows as stopped.
    script = "echo $$ > pid; read -r _ < go; read -r line; echo got $line"
    os.mkfifo(box.file("go"))
    pty = terminals.shell()
    pty.type(run("--", "sh", "-c", script) + "\n")
    pid = box.pid("pid")
    wrapper = wrapper_of(pid)
    pty.type("\x1a")
    until(lambda: state(pid) == state(wrapper) == "T", "the stop of both")
    pty.type("bg\n")
    until(lambda: state(pid) != "T" and state(wrapper) != "T", "both in the background")
    box.file("go").write_text("\n", encoding="utf-8")
    until(lambda: state(pid) == state(wrapper) == "T", "the second stop of both")
    pty.type("fg\n")
    until(lambda: state(pid) != "T", "the command")
    pty.type("some words\n")
    pty.shows("got some words")


def test_a_pipeline_keeps_its_terminal(terminals: Terminals, box: Sandbox) -> None:
    """The reader of a pipeline needs the keyboard too: ``dibs run x -- make | less``."""
    reader = "import sys, os; t = open('/dev/tty'); print(sys.stdin.read().strip(), 'and', t.readline().strip())"
    pty = terminals.shell()
    pty.type(run("--", "echo", "data") + " | " + shlex.join([sys.executable, "-c", reader]) + "\n")
    until(lambda: box.json("ls") == [], "the end of the command")
    pty.type("keys\n")
    pty.shows("data and keys")


def test_a_command_in_a_pipeline_gets_the_terminal_when_it_asks(terminals: Terminals) -> None:
    pty = terminals.shell()
    pty.type(run("--", "sh", "-c", "echo ready > /dev/tty; read -r line; echo got $line") + " | cat\n")
    pty.shows("ready")
    pty.type("some words\n")
    pty.shows("got some words")


def test_a_hangup_ends_the_command(terminals: Terminals, box: Sandbox) -> None:
    pty = terminals.dibs("run", "x", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
    pid = box.pid("pid")
    pty.process.send_signal(signal.SIGHUP)
    assert pty.end() == 128 + signal.SIGHUP
    assert not alive(pid)
