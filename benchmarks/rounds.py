"""How figures are taken: all contenders in each round, in random order, and medians of the rounds.

A noisy machine slows down whole seconds. So whoever is compared has to be measured within the same seconds, and the
ratio is taken within each round before the median.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Scale(NamedTuple):
    """How long a run may take."""

    rounds: int
    seconds: float
    """Of one contender in one round, where the question does not say otherwise."""
    quick: bool


FULL = Scale(9, 0.4, quick=False)
QUICK = Scale(3, 0.1, quick=True)


def interleaved(contenders: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Run each of the *contenders* once in each round; what they return, by round."""
    found: dict[str, list[T]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in random.sample(list(contenders), len(contenders)):
            _say(f"round {number + 1} of {rounds}: {name}")
            found[name].append(contenders[name]())
    _say("")
    return found


def timed(cycle: Callable[[], object], seconds: float, least: int = 20) -> list[float]:
    """Do *cycle* again and again for so many *seconds*; how long each took."""
    now = time.perf_counter
    took: list[float] = []
    until = now() + seconds
    while (began := now()) < until or len(took) < least:
        cycle()
        took.append(now() - began)
    return took


def median(values: Iterable[float]) -> float:
    """The one in the middle."""
    return statistics.median(values)


def together(rounds: Iterable[Iterable[T]]) -> list[T]:
    """The values of all rounds."""
    return [value for values in rounds for value in values]


def percentile(values: Iterable[float], part: float) -> float:
    """The value that *part* of all values (0.99, say) do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def ratio(values: Sequence[float], floor: Sequence[float]) -> float:
    """How many times the *floor*, round by round."""
    return median(value / least for value, least in zip(values, floor, strict=True))


def _say(text: str) -> None:
    """Show how far we are, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
