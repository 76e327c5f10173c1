"""What people and programs get to read: lines on stderr, text and JSON on stdout, never a raw control character."""

from __future__ import annotations

import errno
import os
import select
import sys
from typing import Any


class CannotWriteError(OSError):
    """The answer did not reach stdout."""

    def __str__(self) -> str:
        return str(self.strerror)


def printable(text: str) -> str:
    r"""Show control characters as ``\n`` or ``\x1b``: notes and names come from others, terminals obey them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def say(text: str) -> None:
    """Write one line of ours to stderr, whatever *text* holds."""
    write_error(f"dibs: {printable(text)}\n")


def say_at_once(text: str) -> None:
    """Do `say` if that cannot block, else nothing.

    While a command has to be killed before a deadline, a terminal held by Ctrl-S or a full pipe must not hold us.
    """
    try:
        free = bool(select.select([], [2], [], 0)[1])
    except (OSError, ValueError):
        return
    if free:
        say(text[:1000])  # a pipe that is ready takes 4096 bytes, which no 1000 characters exceed


def say_json(facts: dict[str, Any]) -> None:
    """Write *facts* as one line to stderr: stdout belongs to the command."""
    write_error(as_json(facts) + "\n")


def print_json(facts: object) -> None:
    """Write *facts* as one line to stdout."""
    write(as_json(facts))


def write(text: str) -> None:
    """Write *text* as lines to stdout, now; `CannotWriteError` if that fails."""
    if sys.stdout is None:  # closed before we started
        raise CannotWriteError(errno.EBADF, "cannot write: stdout is closed")
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        raise CannotWriteError(error.errno, f"cannot write: {error.strerror}") from error


def as_json(facts: object) -> str:
    """Write *facts* as JSON in one line."""
    import json  # noqa: PLC0415 - 2 ms at the start of every `dibs run`

    return json.dumps(facts)


def write_error(text: str) -> None:
    """Write to stderr in one piece, so that it stays one line beside those of the command."""
    data = text.encode(errors="backslashreplace")
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        return  # nobody can be told; the exit code still says it
