"""Two processes that pass one lock to each other: how long it takes until the one who waits has it."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import TypeVar

from crew import partner
from page import Aim, millis, table, times
from rounds import interleaved, median, percentile, ratio, together

Guard = Callable[[], AbstractContextManager[object]]

Opened = Callable[[], AbstractContextManager[Guard]]
"""Makes a lock, as something to enter, in whichever process it is called: so it has to be picklable."""

Place = TypeVar("Place")

Rounds = Mapping[str, list[list[float]]]
"""How long each hand-over took, by contender and round."""

HELD = (0.02, 0.06)
"""Seconds for which the lock is held before it is handed over: at random, so that pollers are met at any phase."""


def passed(
    opened: Callable[[str, Place], AbstractContextManager[Guard]],
    kinds: Iterable[str],
    place: Place,
    count: int,
    rounds: int,
    held: tuple[float, float] = HELD,
) -> Rounds:
    """Hand the lock of each of the *kinds* that is at *place* over *count* times in each round."""
    runs = {kind: functools.partial(handoffs, functools.partial(opened, kind, place), count, held) for kind in kinds}
    return interleaved(runs, rounds)


def over_one(found: Rounds, one: str) -> dict[str, float]:
    """How many times the p50 of *one* each takes."""
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    return {kind: ratio(middle[kind], middle[one]) for kind in found}


def shown_over_one(where: str, found: Rounds, over: Mapping[str, float], to: str = "") -> str:
    """The table of those that are measured against one of them."""
    every = {kind: together(rounds) for kind, rounds in found.items()}
    rows = [
        [kind, times(over[kind]), millis(percentile(took, 0.5)), millis(percentile(took, 0.99))]
        for kind, took in every.items()
    ]
    return table([f"hand-off in {where}, {_each(every)} each", f"p50 ratio{to}", "p50, ms", "p99, ms"], rows)


def against_peers(where: str, found: Rounds, own: str, peers: Iterable[str]) -> tuple[str, Aim]:
    """The table, the fastest first, and that *own* is not slower than the best of the *peers* that are present."""
    every = {kind: together(rounds) for kind, rounds in found.items()}
    p50 = {kind: percentile(took, 0.5) for kind, took in every.items()}
    rows = [
        [kind, millis(p50[kind]), millis(percentile(every[kind], 0.99))] for kind in sorted(p50, key=p50.__getitem__)
    ]
    peer = min((p50[kind] for kind in peers if kind in p50), default=float("inf"))
    aim = Aim(
        "hand-off to a waiter in another process, p50",
        f"≤ the best peer, {millis(peer)} ms",
        f"{millis(p50[own])} ms",
        p50[own] <= peer,
    )
    return table([f"hand-off in {where}, {_each(every)} each", "p50, ms", "p99, ms"], rows), aim


def _each(every: Mapping[str, list[float]]) -> int:
    """How many hand-overs there were of each: as many for all."""
    return len(next(iter(every.values())))


def handoffs(opened: Opened, count: int, held: tuple[float, float]) -> list[float]:
    """Hand the lock over *count* times; the seconds it took."""
    took = []
    waiter = partner(wait_again_and_again, opened)
    with opened() as guard:
        waiter.recv()
        for _ in range(count):
            with guard():
                waiter.send(True)
                waiter.recv()  # it asks now
                time.sleep(random.uniform(*held))
                released_at = time.monotonic()
            took.append(waiter.recv() - released_at)
            waiter.recv()  # and has given it back
    waiter.send(False)
    return took


def wait_again_and_again(holder: Connection, opened: Opened) -> None:
    """Ask for the lock when the holder says so, and tell when it came."""
    with opened() as guard:
        with guard():
            pass
        holder.send("ready")
        while holder.recv():
            holder.send("asking")
            with guard():
                got_it_at = time.monotonic()
            holder.send(got_it_at)
            holder.send("free")
