"""Distributed locks on the command line.

A lock has a name and one holder at a time. If the holder dies, the lock becomes free.

  dibs run nightly-report -- ./report.sh     run a command while holding a lock
  dibs ls                                    see who holds what
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType

from dibs.cli.exits import Exit, exit_for
from dibs.cli.lines import CannotWriteError, say, write
from dibs.cli.options import Parser
from dibs.cli.signals import Interrupted
from dibs.errors import DibsError, Misuse

VERBS = {
    "run": "dibs.cli.run",
    "elect": "dibs.cli.elect",
    "once": "dibs.cli.once",
    "ls": "dibs.cli.ls",
    "show": "dibs.cli.show",
    "acquire": "dibs.cli.acquire",
    "renew": "dibs.cli.renew",
    "release": "dibs.cli.release",
    "check": "dibs.cli.check",
    "evict": "dibs.cli.evict",
    "init": "dibs.cli.init",
    "reseed": "dibs.cli.reseed",
}
"""Verb to the module that knows it; only that one is imported."""

ALIASES = {"break": "evict"}
"""Another name of a verb to its own; help shows the verb alone."""

WITH_COMMAND = {VERBS["run"], VERBS["elect"], VERBS["once"]}
"""The verbs that run a command. Everything after the first ``--`` is that command, whatever it looks like.

Only a NAME that begins with a dash stands between two of them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Do what *argv* says and return the exit code; every error of ours is one line on stderr.

    Without *argv* this is the program itself, and ends the process: leaving all to Python's own end would cost
    `dibs run` 8 ms of its 60. Clients have been closed by then.
    """
    if argv is not None:
        return _code(argv)
    _fill_standard_streams()
    code = _code(sys.argv[1:])
    with suppress(OSError, ValueError):
        if sys.stdout is not None:  # it is None where it was closed before we started
            sys.stdout.flush()
    os._exit(code)


def _fill_standard_streams() -> None:
    """Where one was closed before we started, let no file of ours get its number: an error of ours went into it.

    It is closed on exec, so a command finds it as we did.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def _code(argv: Sequence[str]) -> int:
    try:
        return _dispatch(list(argv))
    except (DibsError, CannotWriteError, KeyboardInterrupt) as error:
        return _told(error)
    except Exception:  # noqa: BLE001 - so as not to end with Python's 1, which the guarded command might have meant
        sys.excepthook(*sys.exc_info())
        return Exit.BUG


def _told(error: DibsError | CannotWriteError | KeyboardInterrupt) -> int:
    """Say it in one line, and return the code to exit with."""
    if isinstance(error, KeyboardInterrupt):
        return error.exit if isinstance(error, Interrupted) else Exit.SIGNAL + signal.SIGINT
    if isinstance(error, DibsError):
        say(str(error))
        return exit_for(error)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains when it flushes stdout at the end
    if error.errno == errno.EPIPE:  # as `dibs ls | head` has it: no reader, no problem
        return Exit.SIGNAL + signal.SIGPIPE
    say(str(error))
    return Exit.CANNOT_WRITE


def _dispatch(argv: list[str]) -> int:
    verb, *rest = argv or ["--help"]
    if verb in {"-h", "--help", "help"}:
        write(_overview())
        return 0
    if verb == "--version":
        write(f"dibs {_version()}")
        return 0
    module = VERBS.get(ALIASES.get(verb, verb))
    if module is None:
        raise Misuse(f"there is no verb {verb!r}; there are {', '.join(VERBS)}; see dibs --help")
    _survive_any_text()
    return _do(importlib.import_module(module), rest)


def _do(verb: ModuleType, argv: list[str]) -> int:
    parser = Parser(verb.USAGE, verb.__doc__ or "")
    verb.arguments(parser)
    if verb.__name__ not in WITH_COMMAND:
        return int(verb.main(parser.read(argv)))
    end = argv.index("--") if "--" in argv else len(argv)
    options = argv[:end]
    if argv[end + 2 : end + 3] == ["--"] and argv[end + 1].startswith("-"):  # -- NAME -- COMMAND
        end, options = end + 2, argv[: end + 2]
    args = parser.read(options)
    return int(verb.main(args, argv[end + 1 :] if end < len(argv) else None))


def _overview() -> str:
    summaries = {verb: (importlib.import_module(name).__doc__ or "").split("\n")[0] for verb, name in VERBS.items()}
    verbs = "\n".join(f"  {verb:9}{summary}" for verb, summary in summaries.items())
    return (
        f"usage: dibs VERB ...\n\n{(__doc__ or '').strip()}\n\nverbs:\n{verbs}\n\n"
        "dibs VERB --help says more about each; dibs --version says which this is."
    )


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - 20 ms

    return version("dibs")


def _survive_any_text() -> None:
    """Let stdout carry every name and note, also where the locale cannot."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
