"""What the verbs' options have in common: one parser that refuses in one line, and the numbers it accepts."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from dibs.core.client import DEFAULT_TTL
from dibs.errors import Misuse

if TYPE_CHECKING:
    from dibs import Client, Lock

WIDTH = 100
"""Columns of every help text, so that the docs show what every terminal shows."""

LONGEST = 10 * 365 * 86_400.0
"""Ten years in seconds, as the library has it: longer is a mistake of units."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `Misuse` instead of printing a page, and never guesses an option."""

    def __init__(self, usage: str, doc: str) -> None:
        self.usage: str
        self._argv: list[str] = []
        super().__init__(
            prog=" ".join(usage.split()[:2]),
            usage=usage,
            description=doc.strip(),
            formatter_class=Help,
            add_help=False,
            allow_abbrev=False,
        )

    def read(self, argv: list[str]) -> argparse.Namespace:
        """Read the arguments of one call."""
        self._argv = argv
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        """Raise the error, say where to read more, and how to write a NAME that was taken for an option."""
        odd = next(filter(self._is_no_option, self._argv), None)
        if odd is not None and "required: NAME" in message:
            command = " -- COMMAND" if "COMMAND" in self.usage else ""
            message += f"; a NAME that begins with a dash is written after --, as in {self.prog} -- {odd}{command}"
        raise Misuse(f"{message}; see {self.prog} --help")

    def _is_no_option(self, word: str) -> bool:
        known = self._option_string_actions
        return word.startswith("-") and word != "--" and word.partition("=")[0] not in known and word[:2] not in known


class Help(argparse.RawDescriptionHelpFormatter):
    """Help of a fixed width, written the same way by every version of Python."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        value = str(action.metavar or action.dest.upper()) if action.nargs != 0 else ""
        return " ".join(filter(None, [", ".join(action.option_strings), value]))


UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
"""How many seconds one is."""


def seconds(text: str) -> float:
    """Read a length of time above zero."""
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be more than 0 seconds")
    return value


def seconds_or_zero(text: str) -> float:
    """Read a length of time; 0 is one too."""
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} must not be negative")
    return value


def _number(text: str) -> float:
    number, unit = _split(text)
    try:
        value = float(number) * UNITS[unit]
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time, such as 90, 90s, 5m, 2h or 500ms")
    if abs(value) > LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is more than ten years; without a unit it is in seconds")
    return value


def _split(text: str) -> tuple[str, str]:
    """Take the unit from the end of a length of time."""
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    return text.removesuffix(unit), unit or "s"


def fence(text: str) -> int:
    """Read a fence as `dibs ls` shows it."""
    if not re.fullmatch(r"[0-9]{1,19}", text) or not 0 < int(text) < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fence: a whole number, as dibs ls shows it")
    return int(text)


def whole(text: str) -> int:
    """Read a whole number, 0 or more."""
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def count(text: str) -> int:
    """Read a number of slots."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of slots: a whole number above 0")
    return int(text)


def exit_code(text: str) -> int:
    """Read an exit code."""
    if not re.fullmatch(r"[0-9]{1,3}", text) or int(text) > 255:
        raise argparse.ArgumentTypeError(f"{text!r} is not an exit code: a whole number from 0 to 255")
    return int(text)


def words(*allowed: str) -> Callable[[str], str]:
    """Make a reader of one of the *allowed* words. (`choices` is worded differently by each version of Python.)"""

    def read(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return read


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add what every verb takes: where the locks are, and in which form to answer."""
    parser.add_argument("--url", metavar="URL", help="where the locks are ($DIBS_URL, or a SQLite file of this user)")
    parser.add_argument("--namespace", metavar="TEXT", help="keeps applications apart ($DIBS_NAMESPACE, or 'default')")
    parser.add_argument("--json", action="store_true", help="answer in JSON, one line")
    parser.add_argument("-h", "--help", action="help", help="show this and exit")


def add_asking(parser: argparse.ArgumentParser) -> None:
    """Add what the verbs take that acquire."""
    parser.add_argument(
        "-w", "--timeout", type=seconds_or_zero, metavar="TIME", help="wait at most this time (without it: for ever)"
    )
    parser.add_argument("-n", "--no-wait", action="store_true", help="do not wait: the same as --timeout 0")
    parser.add_argument(
        "--ttl", type=seconds, default=DEFAULT_TTL, metavar="TIME", help=f"how long a lease lasts ({DEFAULT_TTL:g}s)"
    )
    parser.add_argument(
        "--note", default="", metavar="TEXT", help="shown to others who look at the lock, or wait for it"
    )


def add_share(parser: argparse.ArgumentParser) -> None:
    """Add what the verbs take that may share what they acquire."""
    parser.add_argument("--shared", action="store_true", help="share the lock with others who ask for it with --shared")
    parser.add_argument("--slots", type=count, metavar="N", help="take one of N slots of a semaphore, not all of it")
    parser.add_argument("--weight", type=count, metavar="N", help="take N of the --slots (1)")


def lock_of(args: argparse.Namespace, client: Client) -> Lock:
    """Describe the lock that is asked for: all of it, or a part."""
    if args.shared and args.slots is not None:
        raise Misuse("--shared and --slots exclude each other: a name is shared, or it has slots; give one")
    if args.weight is not None and args.slots is None:
        raise Misuse("--weight says how many of the --slots; give both")
    if args.slots is not None:
        return client.semaphore(args.name, args.slots, weight=args.weight or 1, ttl=args.ttl, note=args.note)
    return client.lock(args.name, ttl=args.ttl, note=args.note, shared=args.shared)


def timeout_of(args: argparse.Namespace) -> float | None:
    """Tell how long to wait: None is for ever."""
    if args.no_wait and args.timeout is not None:
        raise Misuse("--no-wait and --timeout exclude each other; give one")
    return 0.0 if args.no_wait else args.timeout


def namespace_of(args: argparse.Namespace) -> str:
    """Tell whose names they are."""
    return str(args.namespace if args.namespace is not None else os.environ.get("DIBS_NAMESPACE") or "default")


def lease_text(args: argparse.Namespace) -> str:
    """Find the lease that a verb is about: its argument, else $DIBS_TOKEN."""
    text = args.text if args.text is not None else os.environ.get("DIBS_TOKEN", "")
    if not text:
        raise Misuse("give the lease as text, as dibs acquire printed it, or set DIBS_TOKEN to it")
    return str(text)
