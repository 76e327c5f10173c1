"""What does a lock in Consul cost over the bare requests, how fast is it handed over, and what does a crowd cost?"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dibs
from consul_locks import BARE, BARE_HTTPX, CONSULOCK, DIBS, DIBS_ASYNC, Guard, opened, present
from consul_server import ConsulServer
from dibs.ports.consul import Agent
from page import Aim, Answer, micros, millis, table, times
from passing import handoffs
from rounds import Scale, interleaved, median, percentile, ratio, timed, together

CYCLE_AIM, CALLS_AIM = 1.5, 6

CROWD = 32


def measure(_folder: Path, scale: Scale) -> Answer:
    """All on one server that writes to disk."""
    with ConsulServer() as server:
        cycles, cycle_aim = _cycles(server, scale)
        handoffs, handoff_aim = _handoffs(server, scale)
        return Answer([cycles, handoffs], [cycle_aim, handoff_aim, _crowd(server)])


def _cycles(server: ConsulServer, scale: Scale) -> tuple[str, Aim]:
    """Take a free lock and give it back."""
    kinds = present([BARE, BARE_HTTPX, DIBS, DIBS_ASYNC, CONSULOCK])
    with contextlib.ExitStack() as stack:
        guards = {kind: stack.enter_context(opened(kind, server.port)) for kind in kinds}
        blocks = {kind: _block(guard, scale.seconds) for kind, guard in guards.items()}
        for block in blocks.values():
            block()
        gc.freeze()
        found = interleaved(blocks, scale.rounds)
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    over = {kind: ratio(middle[kind], middle[BARE]) for kind in kinds}
    rows = [[kind, times(over[kind]), micros(median(middle[kind]))] for kind in sorted(kinds, key=over.__getitem__)]
    what = "acquire + release in Consul over the bare ?acquire and ?release"
    aim = Aim(what, f"≤ {CYCLE_AIM:g}×", times(over[DIBS]), over[DIBS] <= CYCLE_AIM)
    return table(["acquire + release in Consul", "ratio to the floor", "median, µs"], rows), aim


def _block(guard: Guard, seconds: float) -> Callable[[], list[float]]:
    def cycle() -> None:
        with guard():
            pass

    return lambda: timed(cycle, seconds)


def _handoffs(server: ConsulServer, scale: Scale) -> tuple[str, Aim]:
    """From a release in one process until a waiter in another has the lock."""
    count = 5 if scale.quick else 15
    kinds = present([DIBS, DIBS_ASYNC, CONSULOCK])
    runs = {kind: functools.partial(handoffs, functools.partial(opened, kind, server.port), count) for kind in kinds}
    every = {kind: together(rounds) for kind, rounds in interleaved(runs, scale.rounds).items()}
    rows = [[kind, *(millis(percentile(took, part)) for part in (0.5, 0.99))] for kind, took in every.items()]
    rows.sort(key=lambda row: percentile(every[row[0]], 0.5))
    peer = min((percentile(every[kind], 0.5) for kind in (CONSULOCK,) if kind in every), default=float("inf"))
    found = percentile(every[DIBS], 0.5)
    aim = Aim(
        "hand-off to a waiter in another process, p50",
        f"≤ the best peer, {millis(peer)} ms",
        f"{millis(found)} ms",
        found <= peer,
    )
    return table([f"hand-off in Consul, {len(every[DIBS])} each", "p50, ms", "p99, ms"], rows), aim


def _crowd(server: ConsulServer) -> Aim:
    """Let many wait, each with a client of its own; the calls for each hand-over, whatever they are for."""
    calls, ask = Counter[str](), Agent._ask

    async def counted(self: Agent, method: str, *rest: Any, **options: Any) -> Any:
        calls[method] += 1
        return await ask(self, method, *rest, **options)

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dibs.connect(server.url)) for _ in range(CROWD)]
        looking = stack.enter_context(dibs.connect(server.url))
        lease = looking.lock("crowd").acquire()
        waiters = [threading.Thread(target=_hold_once, args=(client,)) for client in clients]
        for number, waiter in enumerate(waiters):
            waiter.start()
            while len(looking.show("crowd").waiting) <= number:
                time.sleep(0.005)
        Agent._ask = counted  # type: ignore[method-assign]
        try:
            lease.release()
            for waiter in waiters:
                waiter.join()
        finally:
            Agent._ask = ask  # type: ignore[method-assign]
    each = calls.total() / CROWD
    return Aim(f"calls for each hand-over among {CROWD} waiters", f"≤ {CALLS_AIM}", f"{each:.1f}", each <= CALLS_AIM)


def _hold_once(client: dibs.Client) -> None:
    with client.lock("crowd"):
        pass
