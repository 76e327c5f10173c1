"""What does a lock in Consul cost over the bare requests, how fast is it handed over, and what does a crowd cost?"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import passing
import uncontended
from consul_locks import BARE, BARE_HTTPX, CONSULOCK, DIBS, DIBS_ASYNC, opened, present
from consul_server import ConsulServer
from crowd import calls_for_each
from dibs.stores.consul.port.agent import Agent
from page import Aim, Answer, at_most
from rounds import Scale, ratio

CYCLE_AIM, CALLS_AIM = 1.5, 6


def measure(_folder: Path, scale: Scale) -> Answer:
    """All on one server that writes to disk."""
    with ConsulServer() as server:
        cycles, cycle_aim = _cycles(server, scale)
        handoffs, handoff_aim = _handoffs(server, scale)
        return Answer([cycles, handoffs], [cycle_aim, handoff_aim, calls_for_each(server.url, _counted(), CALLS_AIM)])


def _cycles(server: ConsulServer, scale: Scale) -> tuple[str, Aim]:
    """Take a free lock and give it back."""
    kinds = present([BARE, BARE_HTTPX, DIBS, DIBS_ASYNC, CONSULOCK])
    middle = uncontended.cycles(opened, kinds, server.port, scale)
    over = {kind: ratio(middle[kind], middle[BARE]) for kind in kinds}
    aim = at_most("acquire + release in Consul over the bare ?acquire and ?release", CYCLE_AIM, over[DIBS])
    return uncontended.shown("Consul", sorted(kinds, key=over.__getitem__), middle, over), aim


def _handoffs(server: ConsulServer, scale: Scale) -> tuple[str, Aim]:
    """From a release in one process until a waiter in another has the lock."""
    kinds = present([DIBS, DIBS_ASYNC, CONSULOCK])
    found = passing.passed(opened, kinds, server.port, 5 if scale.quick else 15, scale.rounds)
    return passing.against_peers("Consul", found, DIBS, [CONSULOCK])


@contextlib.contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Count the calls of every client."""
    calls, ask = Counter[str](), Agent._ask

    async def counted(self: Agent, method: str, *rest: Any, **options: Any) -> Any:
        calls[method] += 1
        return await ask(self, method, *rest, **options)

    Agent._ask = counted  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        Agent._ask = ask  # type: ignore[method-assign]
