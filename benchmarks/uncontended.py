"""What it costs to take a free lock and give it back, again and again: the contenders side by side, on one server."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from page import micros, table, times
from rounds import Scale, interleaved, median, timed

Guard = Callable[[], AbstractContextManager[object]]

Place = TypeVar("Place")


def cycles(
    opened: Callable[[str, Place], AbstractContextManager[Guard]], kinds: Iterable[str], place: Place, scale: Scale
) -> dict[str, list[float]]:
    """The median cycle of each of the *kinds*, by round; *opened* makes the lock of a kind that is at *place*."""
    with contextlib.ExitStack() as stack:
        blocks = {kind: block(stack.enter_context(opened(kind, place)), scale.seconds) for kind in kinds}
        for first in blocks.values():
            first()
        gc.freeze()  # what the libraries are made of is not looked through again for each of the others
        found = interleaved(blocks, scale.rounds)
    return {kind: [median(took) for took in rounds] for kind, rounds in found.items()}


def block(guard: Guard, seconds: float) -> Callable[[], list[float]]:
    """Enters and leaves for so many *seconds*; how long each time took."""

    def cycle() -> None:
        with guard():
            pass

    return lambda: timed(cycle, seconds)


def shown(where: str, kinds: Iterable[str], middle: Mapping[str, Sequence[float]], over: Mapping[str, float]) -> str:
    """The table, in the order of *kinds*; *over* is how many times its floor each one takes that has a floor."""
    rows = [[kind, times(over[kind]) if kind in over else "", micros(median(middle[kind]))] for kind in kinds]
    return table([f"acquire + release in {where}", "ratio to the floor", "median, µs"], rows)
