"""A guard that needs no memory, where the data is in ZooKeeper: the ensemble checks the lease in the step that writes.

A lease is a node there, and a transaction can require that it exists. So a holder that lost its lock cannot write, and
no fence has to be kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, overload

from dibs.errors import LeaseLost, LossReason

if TYPE_CHECKING:
    from dibs.core.lease import Lease
    from dibs.stores.zookeeper.port.condition import TransactionResult

Fill = Callable[[Any], object]
"""Adds to a transaction what is to be done, such as ``lambda t: t.set_data("/app/config", b"…")``."""


@overload
def transact(client: Any, lease: Lease, fill: Fill) -> Coroutine[Any, Any, list[Any]]: ...
@overload
def transact(client: Any, lease: Any, fill: Fill) -> list[Any]: ...
def transact(client: Any, lease: Any, fill: Fill) -> object:
    """Do in one transaction of *client*, a KazooClient, what *fill* adds to it, if *lease* holds; return the results.

    With a lease of `dibs.aio` it is awaited. Raises `LeaseLost` if the lease does not hold, and then nothing was done;
    `OutcomeUnknown` if the connection broke; else what kazoo raises for what was refused, such as `BadVersionError`.
    """
    from dibs.stores.zookeeper.port.condition import begun, commit, commit_async  # noqa: PLC0415 - only here is kazoo needed

    transaction = begun(client, lease.compare())
    fill(transaction)
    if inspect.iscoroutinefunction(type(lease).release):
        return _awaited(lease, commit_async(transaction))
    return _results(lease, commit(transaction))


@overload
def write(client: Any, lease: Lease, path: str, data: bytes, *, version: int = ...) -> Coroutine[Any, Any, None]: ...
@overload
def write(client: Any, lease: Any, path: str, data: bytes, *, version: int = ...) -> None: ...
def write(client: Any, lease: Any, path: str, data: bytes, *, version: int = -1) -> object:
    """Write *data* to the node at *path* with *client*, a KazooClient, if *lease* holds; `transact` says the rest.

    The node has to be there already; a *version* other than -1 has to be the one it has.
    """
    done = transact(client, lease, lambda transaction: transaction.set_data(path, data, version))
    return _nothing(done) if inspect.iscoroutine(done) else None


async def _nothing(done: Coroutine[Any, Any, Any]) -> None:
    await done


async def _awaited(lease: Any, done: Coroutine[Any, Any, TransactionResult]) -> list[Any]:
    return _results(lease, await done)


def _results(lease: Any, held: TransactionResult) -> list[Any]:
    if not held.holds:
        raise LeaseLost(lease.name, lease.fence, LossReason.TAKEN)
    return held.results
