"""What does a lock in ZooKeeper cost over the bare calls, and how fast is it handed over?"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import dibs
import passing
import uncontended
from page import Aim, Answer, at_most, table
from rounds import Scale, ratio
from zookeeper_locks import BARE, DIBS, KAZOO, KINDS, TOOZ, opened
from zookeeper_server import ZooKeeperServer

CYCLE_AIM, KAZOO_AIM, CROWD_AIM = 1.5, 1.0, 8.0

CROWDS = [2, 8, 32]
"""Clients that want one lock."""


def measure(_folder: Path, scale: Scale) -> Answer:
    """All on one server that writes to disk."""
    with ZooKeeperServer() as server:
        cycles, cycle_aim = _cycles(server, scale)
        handoffs, handoff_aim = _handoffs(server, scale)
        crowds, crowd_aim = _crowds(server, scale)
        return Answer([cycles, handoffs, crowds], [cycle_aim, handoff_aim, crowd_aim])


def _cycles(server: ZooKeeperServer, scale: Scale) -> tuple[str, Aim]:
    """Take a free lock and give it back."""
    middle = uncontended.cycles(opened, KINDS, server.port, scale)
    over = {kind: ratio(middle[kind], middle[BARE]) for kind in KINDS}
    aim = at_most("acquire + release over bare create + delete", CYCLE_AIM, over[DIBS])
    return uncontended.shown("ZooKeeper", KINDS, middle, over), aim


def _handoffs(server: ZooKeeperServer, scale: Scale) -> tuple[str, Aim]:
    """From a release in one process until a waiter in another has the lock."""
    found = passing.passed(opened, [DIBS, KAZOO, TOOZ], server.port, 10 if scale.quick else 30, scale.rounds)
    over = passing.over_one(found, KAZOO)
    aim = at_most("hand-off to a waiter in another process, p50 over kazoo Lock", KAZOO_AIM, over[DIBS])
    return passing.shown_over_one("ZooKeeper", found, over, " to kazoo"), aim


def _crowds(server: ZooKeeperServer, scale: Scale) -> tuple[str, Aim]:
    """The requests for one acquisition and release while so many clients wait for their turn."""
    turns = 2 if scale.quick else 5
    asked = {size: crowd(server, size, turns) for size in CROWDS}
    rows = [[str(size), f"{requests:.2f}"] for size, requests in asked.items()]
    most = max(asked.values())
    what = f"requests for one acquisition and release, {', '.join(map(str, CROWDS))} clients wanting the lock"
    shown = ", ".join(f"{requests:.1f}" for requests in asked.values())
    aim = Aim(what, f"≤ {CROWD_AIM:g}", shown, most <= CROWD_AIM)
    return table(["dibs: clients that want one lock", "requests for each turn"], rows), aim


def crowd(server: ZooKeeperServer, size: int, turns: int) -> float:
    """Let *size* clients take one lock *turns* times each; the requests for each time."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dibs.connect(server.url)) for _ in range(size)]
        for client in clients:
            client.show("crowd")  # connect
        before = server.received()

        def work(client: dibs.Client) -> None:
            for _ in range(turns):
                with client.lock("crowd"):
                    pass

        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (server.received() - before) / (size * turns)
