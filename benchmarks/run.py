"""Measures dibs against other libraries and floors: `make bench`, or `make bench ARGS="--quick redis"`.

A full run takes forty minutes and writes docs/benchmarks.md; a quick one only prints. No root is needed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import consul_server
import etcd_server
import page
import postgres_server
import redis_server
import zookeeper_server
from locks import missing
from rounds import FULL, QUICK

EMBEDDED = ["cycle", "memory", "sharing", "handoff", "workers", "leases", "command"]

REDIS = [
    "redis_cycle",
    "redis_many",
    "redis_handoff",
    "redis_crowd",
    "redis_asked",
    "semaphore",
    "redis_idle",
    "redis_leases",
]

REDLOCK = ["redlock_cycle"]

POSTGRES = ["postgres"]

ETCD = ["etcd"]

CONSUL = ["consul_cycle"]

ZOOKEEPER = ["zookeeper"]

EVERYWHERE = ["idempotent", "election"]
"""About several stores, of which it leaves out those that are not there."""

NEEDS: list[tuple[str, Callable[[], object], list[str]]] = [
    ("redis-server", redis_server.program, [*REDIS, *REDLOCK]),
    ("postgres", functools.partial(postgres_server.program, "postgres"), POSTGRES),
    ("etcd", etcd_server.program, ETCD),
    ("consul", consul_server.program, CONSUL),
    ("ZooKeeper", zookeeper_server.is_there, ZOOKEEPER),
]
"""Servers, how it is found out whether they are here, and what cannot be asked without them."""

QUESTIONS = [*EMBEDDED, *REDIS, *REDLOCK, *POSTGRES, *ETCD, *CONSUL, *ZOOKEEPER, *EVERYWHERE]


def main() -> None:
    """Ask what was chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_text = f"some of {', '.join(QUESTIONS)}, or redis for all about it; all if none is named"
    parser.add_argument("question", nargs="*", help=help_text)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; prints, and writes nothing")
    args = parser.parse_args()
    chosen = [known for name in args.question for known in (REDIS if name == "redis" else [name])] or QUESTIONS
    for question in chosen:
        if question not in QUESTIONS:
            parser.error(f"there is no question {question!r}; there are {', '.join(QUESTIONS)}")
    if missing():
        print(f"not installed, and therefore not measured: {', '.join(missing())}", file=sys.stderr)
    for server, is_there, questions in NEEDS:
        if not is_there():
            print(f"there is no {server}, so this is left out: {', '.join(questions)}", file=sys.stderr)
            chosen = [question for question in chosen if question not in questions]
    for question in chosen:
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
