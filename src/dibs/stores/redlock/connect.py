"""Connects a Redlock with its nodes: by the port of its runtime, and what is said first on every connection."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.log import logger
from dibs.runtime import Driver, Runtime
from dibs.stores.redis.port.command import command
from dibs.stores.redis.port.source import RedisSource
from dibs.stores.redlock import scripts
from dibs.stores.redlock.member_scripts import HELLO, NODE
from dibs.stores.redlock.options import RedlockOptions
from dibs.stores.redlock.port.nodes import NodeCall, Nodes

PATIENCE = 0.1
"""Seconds for which a node may owe an answer and still be asked, unless the user says how long one is waited for."""

CONNECTING = 0.5
"""Seconds that opening a connection may take, unless the user does."""


def connected(sources: Sequence[RedisSource], runtime: Runtime, options: RedlockOptions) -> Nodes:
    """The nodes at *sources*, as the port of this runtime reaches them; connections are made when they are needed."""
    if len(sources) % 2 == 0:
        _warn_of_even(len(sources))

    def words() -> list[bytes]:
        return greeting(runtime, options)

    patience = options.node_timeout or PATIENCE
    if runtime.driver is Driver.BLOCKING:
        from dibs.stores.redlock.port.nodes_blocking import BlockingNodes  # noqa: PLC0415 - the one that is needed

        connecting = options.node_timeout or CONNECTING
        return BlockingNodes(sources, words, runtime.now, runtime.token, patience, connecting)
    from dibs.stores.redlock.port.nodes_async import AsyncNodes  # noqa: PLC0415 - the one that is needed

    return AsyncNodes(sources, words, runtime, patience)


def greeting(runtime: Runtime, options: RedlockOptions) -> list[bytes]:
    """What every connection begins with: the scripts, and finding out whether the server was away."""
    loads = [command("SCRIPT", "LOAD", script.text) for script in (scripts.GRANT, scripts.RELEASE, scripts.CONFIRM)]
    hello = NodeCall(HELLO, (NODE,), runtime.token(), "durable" if options.durable else "")
    return [*loads, hello.in_full()]


def _warn_of_even(count: int) -> None:
    logger().warning(
        "a Redlock of %d nodes survives no more losses than one of %d, and each lock needs one vote more",
        count,
        count - 1,
    )
