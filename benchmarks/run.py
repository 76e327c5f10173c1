"""Measures dibs against other libraries and floors: `make bench`, or `make bench ARGS="--quick handoff"`.

A full run takes a quarter of an hour and writes docs/benchmarks.md; a quick one only prints. No root is needed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

import page
from locks import missing
from rounds import FULL, QUICK

QUESTIONS = ["cycle", "memory", "sharing", "handoff", "workers", "leases", "command"]


def main() -> None:
    """Ask what was chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="*", help=f"one of {', '.join(QUESTIONS)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; prints, and writes nothing")
    args = parser.parse_args()
    for question in args.question:
        if question not in QUESTIONS:
            parser.error(f"there is no question {question!r}; there are {', '.join(QUESTIONS)}")
    if missing():
        print(f"not installed, and therefore not measured: {', '.join(missing())}", file=sys.stderr)
    for question in args.question or QUESTIONS:
        ask(question, quick=args.quick)


def ask(question: str, *, quick: bool) -> None:
    """Measure, print, and write."""
    module = importlib.import_module(question)
    load, began = os.getloadavg()[0], time.monotonic()
    print(f"\n{question}: {module.__doc__}")
    with tempfile.TemporaryDirectory(prefix="dibs-bench-") as folder:
        answer = module.measure(Path(folder), QUICK if quick else FULL)
    print("\n".join(["", *answer.tables, "", *page.aims(answer, question)]))
    print(f"({time.monotonic() - began:.0f} s, load before {load:.1f})", flush=True)
    if not quick:
        command = f"make bench{' ARGS=' + question if len(sys.argv) > 1 else ''}"
        page.write(question, answer, command, load)


if __name__ == "__main__":
    main()
