"""The page that shows the figures: its tables between markers in docs/benchmarks.md, one part for each question."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


class Aim(NamedTuple):
    """One thing that was to be reached."""

    what: str
    limit: str
    found: str
    met: bool


def at_most(what: str, most: float, ratio: float) -> Aim:
    """That something takes not more than *most* times its floor."""
    return Aim(what, f"≤ {most:g}×", times(ratio), ratio <= most)


class Answer(NamedTuple):
    """What came out of one question."""

    tables: list[str]
    aims: list[Aim]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column is text, the others are figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(ratio: float) -> str:
    """How many times something."""
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.0f}×"


def micros(seconds: float) -> str:
    """A length in µs."""
    return f"{seconds * 1e6:,.1f}" if seconds < 1e-4 else f"{seconds * 1e6:,.0f}"


def millis(seconds: float) -> str:
    """A length in ms."""
    return f"{seconds * 1e3:,.2f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"


def part(answer: Answer, command: str, load: float) -> str:
    """The tables of one question, and how they were made."""
    how = f"*{time.strftime('%Y-%m-%d')}, `{command}`, {machine()}, load before {load:.1f}.*"
    return "\n\n".join([*answer.tables, how])


def machine() -> str:
    """What it ran on."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}, "
        f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )


def aims(answer: Answer, question: str) -> list[str]:
    """The rows of one question in the table of aims."""
    return [
        f"| [{question}](#{question}) | {aim.what} | {aim.limit} | {aim.found} | {'yes' if aim.met else '**no**'} |"
        for aim in answer.aims
    ]


def write(question: str, answer: Answer, command: str, load: float) -> None:
    """Put one answer in its places on the page; the rest of the page stays as it is."""
    text = PAGE.read_text(encoding="utf-8")
    text = _filled(text, question, part(answer, command, load))
    own = f"| [{question}](#"
    kept = [row for row in _between(text, "aims").splitlines() if not row.startswith(own)]
    head, rows = kept[:2], kept[2:] + aims(answer, question)
    order = re.findall(r"<!-- measured: (\w+) -->", text)
    rows.sort(key=lambda row: order.index(row[3 : row.index("]")]))
    PAGE.write_text(_filled(text, "aims", "\n".join(head + rows)), encoding="utf-8")


def _between(text: str, what: str) -> str:
    found = _marked(what).search(text)
    if found is None:
        sys.exit(f"{PAGE} has no place for {what!r}: <!-- measured: {what} --> … <!-- measured end -->")
    return found[2]


def _filled(text: str, what: str, fresh: str) -> str:
    _between(text, what)
    return _marked(what).sub(lambda found: f"{found[1]}{fresh}\n{found[3]}", text)


def _marked(what: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- measured: {what} -->\n)(.*?)(<!-- measured end -->)", re.S)
