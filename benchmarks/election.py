"""How long is nobody the leader, from the end of one leader until the next one leads?"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import dibs
import postgres_server
import redis_server
from crew import partner
from page import Aim, Answer, millis, table
from rounds import Scale, percentile

TTL = 2.0

SOON = 0.05
"""Seconds within which the next should lead when the store itself notices that the place is free."""

STEPS_DOWN, KILLED = "steps down", "kill -9"

GONE = "gone"

AT_ONCE = {"sqlite:", "postgresql+advisory:"}
"""The stores that notice at once that a leader is dead."""


def measure(folder: Path, scale: Scale) -> Answer:
    """One leader, one candidate that stands by, on each store."""
    count = 4 if scale.quick else 40
    with ExitStack() as stack:
        urls = stores(folder, stack)
        found = {(store, how): successions(urls[store], how, count) for store in urls for how in (STEPS_DOWN, KILLED)}
    rows = [
        [
            f"{store} {how}",
            *(millis(percentile(took, part)) for part in (0.5, 0.99)),
            f"{percentile(took, 0.5) / TTL:.3f}",
            f"{percentile(took, 0.99) / TTL:.3f}",
        ]
        for (store, how), took in found.items()
    ]
    head = [f"ttl {TTL:g} s, {count} each", "p50, ms", "p99, ms", "p50, of the ttl", "p99, of the ttl"]
    return Answer([table(head, rows)], [*(aim(*who, took) for who, took in found.items())])


def stores(folder: Path, stack: ExitStack) -> dict[str, str]:
    """Those that are there, and their URLs."""
    urls = {"sqlite:": f"sqlite://{folder}/locks.db"}
    if redis_server.program() is not None:
        urls["redis:"] = stack.enter_context(redis_server.RedisServer(folder)).url
    if postgres_server.program("postgres") is not None:
        postgres = stack.enter_context(postgres_server.PostgresServer())
        urls["postgresql:"] = postgres.url()
        urls["postgresql+advisory:"] = postgres.url("postgresql+advisory")
    return urls


def aim(store: str, how: str, took: list[float]) -> Aim:
    """At once where the store can know, else as soon as the lease has ended."""
    limit = SOON if how == STEPS_DOWN or store in AT_ONCE else TTL + SOON
    p99 = percentile(took, 0.99)
    return Aim(f"election on {store}, the leader {how}, p99", f"< {millis(limit)} ms", f"{millis(p99)} ms", p99 < limit)


def successions(url: str, how: str, count: int) -> list[float]:
    """Let one leader follow another *count* times; the seconds without one."""
    took = []
    leader, pid = candidate(url, how)
    leader.recv()
    for _ in range(count):
        heir, next_pid = candidate(url, how)
        until_somebody_waits(url, how)
        time.sleep(random.uniform(0, TTL / 3))  # at any phase of the renewals
        if how == KILLED:
            ended_at = time.monotonic()
            os.kill(pid, signal.SIGKILL)
        else:
            leader.send("step down")
            ended_at = leader.recv()
        took.append(heir.recv() - ended_at)
        leader, pid = heir, next_pid
    leader.send("step down")
    while leader.recv() != GONE:
        continue
    return took


def candidate(url: str, how: str) -> tuple[Connection, int]:
    """One more process that wants to lead, and its number."""
    ours = partner(stand, url, how)
    return ours, ours.recv()


def stand(tester: Connection, url: str, name: str) -> None:
    """Wait to lead, say when it came, lead until told to step down, and say when the work had stopped."""
    with dibs.connect(url) as client:
        tester.send(os.getpid())
        with client.election(name, ttl=TTL).lead():
            tester.send(time.monotonic())
            tester.recv()
            tester.send(time.monotonic())
    with contextlib.suppress(BrokenPipeError):  # the test has heard enough
        tester.send(GONE)


def until_somebody_waits(url: str, name: str) -> None:
    """The heir has to be in line, or its own start would be measured."""
    with dibs.connect(url) as client:
        while not client.show(name).waiting:
            time.sleep(0.01)
