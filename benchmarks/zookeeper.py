"""What does a lock in ZooKeeper cost over the bare calls, and how fast is it handed over?"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable
from pathlib import Path

import dibs
from page import Aim, Answer, micros, millis, table, times
from passing import handoffs
from rounds import Scale, interleaved, median, percentile, ratio, timed, together
from zookeeper_locks import BARE, DIBS, KAZOO, KINDS, TOOZ, Guard, opened
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
    with contextlib.ExitStack() as stack:
        guards = {kind: stack.enter_context(opened(kind, server.port)) for kind in KINDS}
        blocks = {kind: _block(guard, scale.seconds) for kind, guard in guards.items()}
        for block in blocks.values():
            block()
        gc.freeze()
        found = interleaved(blocks, scale.rounds)
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    over = {kind: ratio(middle[kind], middle[BARE]) for kind in KINDS}
    rows = [[kind, times(over[kind]), micros(median(middle[kind]))] for kind in KINDS]
    aim = Aim(
        "acquire + release over bare create + delete", f"≤ {CYCLE_AIM:g}×", times(over[DIBS]), over[DIBS] <= CYCLE_AIM
    )
    return table(["acquire + release in ZooKeeper", "ratio to the floor", "median, µs"], rows), aim


def _block(guard: Guard, seconds: float) -> Callable[[], list[float]]:
    def cycle() -> None:
        with guard():
            pass

    return lambda: timed(cycle, seconds)


def _handoffs(server: ZooKeeperServer, scale: Scale) -> tuple[str, Aim]:
    """From a release in one process until a waiter in another has the lock."""
    count = 10 if scale.quick else 30
    kinds = [DIBS, KAZOO, TOOZ]
    found = interleaved(
        {kind: functools.partial(handoffs, functools.partial(opened, kind, server.port), count) for kind in kinds},
        scale.rounds,
    )
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    over = {kind: ratio(middle[kind], middle[KAZOO]) for kind in kinds}
    every = {kind: together(rounds) for kind, rounds in found.items()}
    rows = [
        [kind, times(over[kind]), millis(percentile(took, 0.5)), millis(percentile(took, 0.99))]
        for kind, took in every.items()
    ]
    what = "hand-off to a waiter in another process, p50 over kazoo Lock"
    aim = Aim(what, f"≤ {KAZOO_AIM:g}×", times(over[DIBS]), over[DIBS] <= KAZOO_AIM)
    head = [f"hand-off in ZooKeeper, {len(every[DIBS])} each", "p50 ratio to kazoo", "p50, ms", "p99, ms"]
    return table(head, rows), aim


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
