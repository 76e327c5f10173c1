"""Finishes a coroutine without an event loop, as a plain call in the caller's own thread."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run *work*, none of whose awaits suspends, and return what it returns.

    One ``send(None)`` reaches the end, because in the thread runtime every await is an ordinary blocking call.
    The stack stays live, exceptions and Ctrl-C are real, and there is no loop and no extra thread (about 0.2 µs).
    """
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a step suspended in blocking code: its store awaits something that is not of this runtime")
