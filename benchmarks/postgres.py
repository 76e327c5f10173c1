"""What does a lock in PostgreSQL cost over the bare statements, and how fast is it handed over?"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from pathlib import Path

import dibs
import passing
import postgres_peers
import uncontended
from page import Aim, Answer, at_most
from postgres_locks import ADVISORY, BARE, BARE_ASYNC, FENCED, ROWS, ROWS_ASYNC, SESSION, Guard, opened
from postgres_server import HOST, PostgresServer
from rounds import Scale, ratio

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
    middle = uncontended.cycles(opened, kinds, server.url, scale)
    over = {kind: ratio(middle[kind], middle[floor]) for kind, floor in FLOORS.items()}
    aims = [at_most(f"acquire + release, {kind} over {FLOORS[kind]}", CYCLE_AIM, over[kind]) for kind in FLOORS]
    return uncontended.shown("PostgreSQL, one core", kinds, middle, over), aims


def _handoffs(server: PostgresServer, scale: Scale) -> tuple[str, Aim]:
    """From a release in one process until a waiter in another has the lock."""
    kinds = [ADVISORY, SESSION, ROWS, *postgres_peers.present()]
    server.run_on({0, 1})
    found = passing.passed(at, kinds, server.port, 10 if scale.quick else 30, scale.rounds)
    over = passing.over_one(found, ADVISORY)
    what = "hand-off to a waiter in another process, p50 of session locks over a bare blocked lock"
    return passing.shown_over_one("PostgreSQL", found, over), at_most(what, HANDOFF_AIM, over[SESSION])


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
