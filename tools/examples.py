"""Runs the examples of one Markdown page, from top to bottom, as its reader would.

    .venv/bin/python tools/examples.py docs/guarantees.md

- Every ``python`` block runs, all blocks of a page in one namespace; ``await`` at top level is fine.
- A ``console`` block whose first line is ``$ dibs …`` runs. Each command must exit with 0 (``; echo $?``
  shows another), and half the words of each output line shown must come out: numbers, hosts and users may
  differ, columns and sentences may not.
- ``no-run`` after the language, as in ``python no-run``, only compiles a block, and skips a console block.

The page runs in a directory of its own that is thrown away, with a fresh embedded store.
"""

from __future__ import annotations

import ast
import asyncio
import atexit
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PATIENCE = 20  # seconds for one command of a console block


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    runs: bool
    line: int
    """Where its text begins."""
    text: str


class Command(NamedTuple):
    """One command of a console block, and the output the page shows for it."""

    line: str
    shown: list[str]


class ExampleError(Exception):
    """An example does not do what the page says."""


def blocks(page: str) -> Iterator[Block]:
    """Find the fenced blocks of a page."""
    fence = re.compile(r"^(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=ticks)`*[ \t]*$", re.M | re.S)
    for found in fence.finditer(page):
        language, *marks = found["info"].split() or [""]
        line = page.count("\n", 0, found.start("text")) + 1
        yield Block(language, "no-run" not in marks, line, found["text"])


def commands(text: str) -> Iterator[Command]:
    """Split a console block into its commands; a backslash at the end of a line continues one."""
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.M)[1:]:
        line, *shown = part.splitlines()
        yield Command(line, shown)


def run_page(path: Path) -> None:
    """Run every example of the page in the current directory."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.language == "python":
                run_python(block, path.name, namespace, runner)
            elif block.language == "console" and block.runs and block.text.startswith("$ dibs "):
                for command in commands(block.text):
                    run_command(command)


def run_python(block: Block, page: str, namespace: dict[str, object], runner: asyncio.Runner) -> None:
    """Run a block; a traceback shows its place in the page."""
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if not block.runs:
        return
    result = eval(code, namespace)  # noqa: S307 - our own documentation
    if inspect.iscoroutine(result):
        runner.run(result)


def run_command(command: Command) -> None:
    """Run a command. Its output goes to a file: what it leaves in the background would keep a pipe open."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        bash = ["bash", "-c", command.line]
        try:
            code = subprocess.run(
                bash,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=PATIENCE,
            ).returncode
        except subprocess.TimeoutExpired as exc:
            raise ExampleError(f"$ {command.line}\nhad not ended after {PATIENCE} s") from exc
        output.seek(0)
        actual = output.read()
    if code != 0:
        raise ExampleError(f"$ {command.line}\nended with {code}:\n{actual}")
    for line in command.shown:
        if not resembles(line, actual):
            raise ExampleError(f"$ {command.line}\ndid not print anything like\n{line}\nbut:\n{actual}")


def resembles(shown: str, actual: str) -> bool:
    """Whether at least half of the words of one shown line were printed."""
    words = re.findall(r"[^\W\d_]{2,}", shown)
    printed = set(re.findall(r"[^\W\d_]{2,}", actual))
    return sum(word in printed for word in words) * 2 >= len(words)


def main(page: str) -> int:
    """Run a page in a directory and with a store of its own; 1 if an example is wrong."""
    path = Path(page).resolve()
    there = tempfile.TemporaryDirectory(prefix="dibs-examples-", ignore_cleanup_errors=True)
    atexit.register(there.cleanup)  # registered before dibs is imported, so done after dibs let go of its files
    atexit.register(end_background)
    os.chdir(there.name)
    for ours in [name for name in os.environ if name.startswith("DIBS_")]:
        del os.environ[ours]
    os.environ |= {
        "DIBS_URL": f"sqlite://{there.name}/locks.db",
        "XDG_STATE_HOME": f"{there.name}/state",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        run_page(path)
    except ExampleError as wrong:
        print(f"{page}: {wrong}", file=sys.stderr)
        return 1
    except Exception:  # noqa: BLE001 - whatever an example raises is the answer
        traceback.print_exc()
        return 1
    return 0


def end_background() -> None:
    """End what console blocks left running: all of our process group but ourselves."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
