"""Signals reach the command and its children, and end a wait without leaving anything behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from dibs.cli.signals import ENDING, FORWARDED, Interrupted, Signals
from tempo import took

from .processes import Sandbox, alive, finished, until, with_no_signal_ignored


@pytest.mark.parametrize("signum", FORWARDED)
def test_a_signal_is_passed_on_to_the_command(box: Sandbox, signum: signal.Signals) -> None:
    script = f"trap 'echo got >> got; exit 7' {signum.name[3:]}; echo > ready; while :; do sleep 0.02; done"
    process = box.start("run", "x", "--", "sh", "-c", script)
    until(lambda: box.file("ready").exists())
    process.send_signal(signum)
    assert finished(process)[0] == 7
    assert box.file("got").read_text(encoding="utf-8") == "got\n"


@pytest.mark.parametrize("signum", ENDING)
def test_a_command_that_dies_of_a_signal_gives_its_code_and_frees_the_lock(
    box: Sandbox, signum: signal.Signals
) -> None:
    process = box.start("run", "x", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
    pid = box.pid("pid")
    process.send_signal(signum)
    assert finished(process) == (128 + signum, "", "")
    assert not alive(pid)
    assert box.holder("x") is None


def test_a_signal_reaches_the_children_of_the_command(box: Sandbox) -> None:
    process = box.start("run", "x", "--", "sh", "-c", "sleep 60 & echo $! > pid; wait; exit 5")
    pid = box.pid("pid")
    process.terminate()
    assert finished(process)[0] == 128 + signal.SIGTERM
    until(lambda: not alive(pid))


def test_the_lock_is_held_until_the_command_has_cleaned_up(box: Sandbox) -> None:
    script = "trap 'while [ ! -e go ]; do sleep 0.02; done; exit 3' TERM; echo > ready; while :; do sleep 0.02; done"
    process = box.start("run", "x", "--", "sh", "-c", script)
    until(lambda: box.file("ready").exists())
    process.terminate()
    assert box.dibs("run", "-w", "0.3", "x", "--", "true").returncode == 75
    box.file("go").touch()
    assert finished(process)[0] == 3
    assert box.holder("x") is None


@pytest.mark.parametrize("signum", ENDING)
def test_a_signal_ends_the_wait_and_leaves_no_ticket(box: Sandbox, signum: signal.Signals) -> None:
    box.dibs("acquire", "x")
    process = box.start("run", "-w", "60", "x", "--", "touch", "it-ran")
    until(lambda: box.waiting("x"))
    process.send_signal(signum)
    assert finished(process) == (128 + signum, "", "")
    assert box.waiting("x") == []
    assert not box.file("it-ran").exists()


def test_a_signal_ends_the_wait_of_acquire(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    process = box.start("acquire", "-w", "60", "x")
    until(lambda: box.waiting("x"))
    process.send_signal(signal.SIGINT)
    assert finished(process) == (130, "", "")
    assert box.waiting("x") == []


def test_a_new_size_of_the_window_does_not_end_the_wait(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    process = box.start("run", "-w", "60", "x", "--", "true")
    until(lambda: box.waiting("x"))
    process.send_signal(signal.SIGWINCH)
    box.dibs("release", token)
    assert finished(process)[0] == 0


def test_what_was_ignored_stays_ignored(box: Sandbox) -> None:
    """That is what nohup does."""
    process = box.start(
        "run", "x", "--", "sh", "-c", "echo > ready; while [ ! -e go ]; do sleep 0.02; done; exit 4",
        ignoring=(signal.SIGHUP,),
    )  # fmt: skip
    until(lambda: box.file("ready").exists())
    process.send_signal(signal.SIGHUP)
    box.file("go").touch()
    assert finished(process)[0] == 4


def test_the_command_starts_with_the_signals_as_they_were(box: Sandbox) -> None:
    """Nothing that Python or dibs handles, ignores or blocks is handed on."""
    show = ["sh", "-c", "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status"]
    bare = subprocess.run(show, capture_output=True, text=True, check=True, preexec_fn=with_no_signal_ignored)
    assert box.dibs("run", "x", "--", *show).stdout == bare.stdout


def test_a_parent_that_ignores_its_children_does_no_harm(box: Sandbox) -> None:
    process = box.start("run", "x", "--", "sh", "-c", "exit 4", ignoring=(signal.SIGCHLD,))
    assert finished(process)[0] == 4


def test_signals_that_come_together_are_all_kept() -> None:
    with Signals() as signals:
        for signum in (signal.SIGUSR1, signal.SIGWINCH, signal.SIGUSR2, signal.SIGUSR1):
            os.kill(os.getpid(), signum)
        assert signals.take() == [signal.SIGUSR1, signal.SIGWINCH, signal.SIGUSR2, signal.SIGUSR1]
        assert signals.take() == []


def test_a_signal_wakes_whoever_waits() -> None:
    with Signals() as signals, took(30):
        os.kill(os.getpid(), signal.SIGUSR1)
        signals.wait(60)


def test_only_the_first_signal_interrupts() -> None:
    """What is given back after the first must not be interrupted by the second."""
    with Signals() as signals, pytest.raises(Interrupted) as caught, signals.raised():
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            os.kill(os.getpid(), signal.SIGUSR2)
    assert caught.value.exit == 128 + signal.SIGUSR1


def test_a_signal_that_came_before_the_wait_is_raised_in_it() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGWINCH)
        os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(Interrupted), signals.raised():
            raise AssertionError("not reached")


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(signum) for signum in FORWARDED]
    with Signals():
        pass
    assert [signal.getsignal(signum) for signum in FORWARDED] == before


def test_ctrl_c_in_a_quick_verb_is_no_traceback(box: Sandbox) -> None:
    interrupt = (
        "import dibs.cli.main as m, dibs.cli.ls as l, sys\ndef stop(*_): raise KeyboardInterrupt\nl.main = stop\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", interrupt + "sys.exit(m.main(['ls']))"], env=box.env, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, b"")
