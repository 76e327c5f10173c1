"""The command `dibs` itself: verbs, help, version, and errors that are one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.cli.exits import Exit
from dibs.cli.main import VERBS, main

from .processes import DIBS, Sandbox

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"

SLOW = {"asyncio", "dataclasses", "inspect", "logging", "importlib.metadata", "json", "socket", "tempfile"}
"""What `dibs run` must not load before it starts its command: each costs milliseconds."""


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_names_every_verb(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert main(args) == 0
    named = re.findall(r"^  (\w+) +[A-Z]", capsys.readouterr().out, re.M)
    assert named == list(VERBS)


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"dibs \d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize("verb", VERBS)
def test_help_does_not_depend_on_the_terminal(box: Sandbox, verb: str) -> None:
    narrow, wide = (box.dibs(verb, "--help", COLUMNS=columns).stdout for columns in ("40", "300"))
    assert narrow == wide
    assert max(map(len, narrow.splitlines())) <= 120


@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_page_shows_the_real_help(box: Sandbox, verb: str) -> None:
    """`make fix` writes it anew."""
    real = box.dibs(verb, "--help").stdout
    assert f"<!-- rendered: dibs {verb} --help -->\n```text\n{real}```\n" in PAGE.read_text(encoding="utf-8")


def test_the_reference_page_names_every_exit_code() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.M))
    assert set(rows) == {str(int(code)) for code in Exit if code not in {Exit.DONE, Exit.SIGNAL}}


def test_a_closed_pipe_is_no_traceback(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    command = f'"{sys.executable}" -m dibs ls 2> err | true; cat err'
    done = subprocess.run(["sh", "-c", command], env=box.env, cwd=box.directory, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_full_disk_is_one_line(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    command = f'exec "{sys.executable}" -m dibs ls > /dev/full'
    done = subprocess.run(["sh", "-c", command], env=box.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (74, "dibs: cannot write: No space left on device\n")


def test_an_unknown_error_is_not_mistaken_for_the_commands_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(VERBS, "ls", "dibs.cli.no_such_module")
    assert main(["ls"]) == Exit.BUG
    assert "Traceback" in capsys.readouterr().err


def test_a_missing_extra_is_one_line_that_names_it(box: Sandbox) -> None:
    box.file("redis.py").write_text("raise ImportError", encoding="utf-8")
    done = box.dibs(
        "ls", "--url", "redis://localhost", PYTHONPATH=f"{box.directory}:{os.environ.get('PYTHONPATH', '')}"
    )
    assert done.returncode == 64
    assert done.stderr == "dibs: the Redis store needs redis-py and hiredis: pip install 'dibs[redis]'\n"


def test_run_loads_nothing_that_is_slow(box: Sandbox) -> None:
    report = (
        "import sys, dibs.cli.main as m\ncode = m.main(['run', 'x', '--', 'true'])\n"
        f"print(*sorted({SLOW!r} & set(sys.modules)))\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", report], env=box.env, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_any_name_can_be_shown_in_any_locale(box: Sandbox) -> None:
    box.dibs("acquire", "🔒 ü\x1b[31m")
    done = box.dibs("ls", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "\\U0001f512" in done.stdout
    assert "\x1b" not in done.stdout


def closed(box: Sandbox, *args: str, stream: str) -> subprocess.CompletedProcess[str]:
    """Run it with *stream* closed, as ``>&-`` does."""
    shell = ["/bin/sh", "-c", f'exec "$@" {stream}', "sh", *DIBS, *args]
    return subprocess.run(shell, capture_output=True, text=True, env=box.env, timeout=30, check=False)


def test_a_closed_stdout_is_one_line(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    done = closed(box, "ls", stream=">&-")
    assert (done.stderr, done.returncode) == ("dibs: cannot write: stdout is closed\n", Exit.CANNOT_WRITE)


def test_a_lease_that_nobody_could_read_is_given_back(box: Sandbox) -> None:
    assert closed(box, "acquire", "a", stream=">&-").returncode == Exit.CANNOT_WRITE
    assert box.dibs("ls").stdout == "no locks are held\n"


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_finds_the_streams_that_are_closed_as_we_did(box: Sandbox, stream: str) -> None:
    look = "for fd in 0 1 2; do [ -e /proc/self/fd/$fd ] || printf $fd; done >seen; exit 7"
    bare = subprocess.run(["/bin/sh", "-c", f"exec sh -c '{look}' {stream}"], cwd=box.directory, check=False)
    expected = (box.directory / "seen").read_text()
    done = closed(box, "run", "a", "--", "sh", "-c", f"cd {box.directory}; {look}", stream=stream)
    assert (done.returncode, bare.returncode) == (7, 7)
    assert (box.directory / "seen").read_text() == expected
