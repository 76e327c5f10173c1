"""What does a lock in PostgreSQL cost over the bare statements, and how fast is it handed over?"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import dibs
import postgres_peers
from page import Aim, Answer, micros, millis, table, times
from passing import handoffs
from postgres_locks import ADVISORY, BARE, BARE_ASYNC, FENCED, ROWS, ROWS_ASYNC, SESSION, Guard, opened
from postgres_server import HOST, PostgresServer
from rounds import Scale, interleaved, median, percentile, ratio, timed, together

CYCLE_AIM, HANDOFF_AIM, MOST_CONNECTIONS = 1.3, 1.5, 2

MANY = 200
"""Session locks of one client."""

FLOORS = {ROWS: BARE, ROWS_ASYNC: BARE_ASYNC, SESSION: FENCED}
"""What each form of dibs is measured against."""


def measure(_folder: Path, scale: Scale) -> Answer:
    """All on one server that writes to disk."""
    with PostgresServer() as server:
        cycles, cycle_aims = _cycles(server, scale)
        handoffs, handoff_aim = _handoffs(server, scale)
        return Answer([cycles, handoffs], [*cycle_aims, handoff_aim, _connections(server)])


def _cycles(server: PostgresServer, scale: Scale) -> tuple[str, list[Aim]]:
    """Take a free lock and give it back: client and server on one core."""
    kinds = [BARE, ROWS, BARE_ASYNC, ROWS_ASYNC, ADVISORY, FENCED, SESSION, *postgres_peers.present()]
    server.run_on({0})
    with contextlib.ExitStack() as stack:
        guards = {kind: stack.enter_context(opened(kind, server.url)) for kind in kinds}
        blocks = {kind: _block(guard, scale.seconds) for kind, guard in guards.items()}
        for block in blocks.values():
            block()
        gc.freeze()
        found = interleaved(blocks, scale.rounds)
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    over = {kind: ratio(middle[kind], middle[floor]) for kind, floor in FLOORS.items()}
    rows = [[kind, times(over[kind]) if kind in over else "", micros(median(middle[kind]))] for kind in kinds]
    aims = [
        Aim(
            f"acquire + release, {kind} over {FLOORS[kind]}",
            f"≤ {CYCLE_AIM:g}×",
            times(over[kind]),
            over[kind] <= CYCLE_AIM,
        )
        for kind in FLOORS
    ]
    return table(["acquire + release in PostgreSQL, one core", "ratio to the floor", "median, µs"], rows), aims


def _block(guard: Guard, seconds: float) -> Callable[[], list[float]]:
    def cycle() -> None:
        with guard():
            pass

    return lambda: timed(cycle, seconds)


def _handoffs(server: PostgresServer, scale: Scale) -> tuple[str, Aim]:
    """From a release in one process until a waiter in another has the lock."""
    count = 10 if scale.quick else 30
    kinds = [ADVISORY, SESSION, ROWS, *postgres_peers.present()]
    server.run_on({0, 1})
    runs = {kind: functools.partial(handoffs, functools.partial(at, kind, server.port), count) for kind in kinds}
    found = interleaved(runs, scale.rounds)
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    over = {kind: ratio(middle[kind], middle[ADVISORY]) for kind in kinds}
    every = {kind: together(rounds) for kind, rounds in found.items()}
    rows = [
        [kind, times(over[kind]), millis(percentile(took, 0.5)), millis(percentile(took, 0.99))]
        for kind, took in every.items()
    ]
    what = "hand-off to a waiter in another process, p50 of session locks over a bare blocked lock"
    aim = Aim(what, f"≤ {HANDOFF_AIM:g}×", times(over[SESSION]), over[SESSION] <= HANDOFF_AIM)
    return table([f"hand-off in PostgreSQL, {len(every[SESSION])} each", "p50 ratio", "p50, ms", "p99, ms"], rows), aim


def at(kind: str, port: int) -> AbstractContextManager[Guard]:
    """The lock of one *kind*, also in another process."""
    return opened(kind, functools.partial(_url, port))


def _url(port: int, scheme: str, options: str) -> str:
    return f"{scheme}://bench@{HOST}:{port}/postgres{options}"


def _connections(server: PostgresServer) -> Aim:
    """Hold many session locks at once."""
    with dibs.connect(server.url("postgresql+advisory")) as client:
        leases = [client.lock(f"many {number}").acquire() for number in range(MANY)]
        used = server.connections("dibs")
        for lease in leases:
            lease.release()
    return Aim(f"connections for {MANY} session locks", f"≤ {MOST_CONNECTIONS}", str(used), used <= MOST_CONNECTIONS)
