"""Several processes that start together, do the same, and report: on clocks and files that they share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

FRESH = multiprocessing.get_context("spawn")  # a forked child would inherit open databases and threads


def crew(size: int, work: Callable[..., Any], *args: object) -> list[Any]:
    """Run ``work(number, start, *args)`` in *size* processes; what they return. *start* is a barrier for all."""
    start = FRESH.Barrier(size)
    ends = [_member(number, start, work, args) for number in range(size)]
    return [report(end) for end in ends]


def partner(work: Callable[..., Any], *args: object) -> Connection:
    """Run ``work(connection, *args)`` in another process; our end of the connection."""
    ours, theirs = FRESH.Pipe()
    FRESH.Process(target=work, args=(theirs, *args), daemon=True).start()
    theirs.close()
    return ours


def alone(work: Callable[..., Any], *args: object) -> Any:
    """Run ``work(*args)`` in a process of its own; what it returns."""
    ours, theirs = FRESH.Pipe()
    FRESH.Process(target=_reporting, args=(theirs, work, args), daemon=True).start()
    theirs.close()
    return report(ours)


def report(end: Connection) -> Any:
    """What a member returned; its error is ours."""
    worked, outcome = end.recv()
    if not worked:
        raise RuntimeError(outcome)
    return outcome


def _member(number: int, start: Barrier, work: Callable[..., Any], args: tuple[object, ...]) -> Connection:
    ours, theirs = FRESH.Pipe()
    FRESH.Process(target=_reporting, args=(theirs, work, (number, start, *args)), daemon=True).start()
    theirs.close()
    return ours


def _reporting(end: Connection, work: Callable[..., Any], args: tuple[object, ...]) -> None:
    try:
        end.send((True, work(*args)))
    except BaseException as error:
        end.send((False, f"{type(error).__name__}: {error}"))
