"""A condition for a transaction of the caller's own KazooClient, and its commit, in blocking or async code."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

try:
    from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError
except ImportError as exc:
    raise ImportError("the ZooKeeper store needs kazoo: pip install 'dibs[zookeeper]'") from exc

from dibs.errors import Misuse, OutcomeUnknown

OUTCOME = "a transaction of yours was sent, and the connection broke before its answer came"


class Condition(NamedTuple):
    """The condition that the node of a lease is there, so that no other client has the lock."""

    path: str
    """The node's path from the root of the ensemble's tree, whatever chroot the client has."""

    def add_to(self, transaction: Any) -> None:
        """Let *transaction*, of `KazooClient.transaction`, fail as a whole unless the lease holds.

        If the lease does not hold, the result has a `kazoo.exceptions.NoNodeError` at this index.
        """
        chroot = transaction.client.chroot
        if chroot and not self.path.startswith(f"{chroot}/"):
            raise Misuse(f"the lock is at {self.path}, which a client with the chroot {chroot} cannot see")
        transaction.check(self.path[len(chroot) :], -1)


class TransactionResult(NamedTuple):
    """The result of a transaction that began with a condition."""

    holds: bool
    """Whether the lease held; if not, nothing was done."""
    results: list[Any]


def begun(client: Any, condition: Condition) -> Any:
    """A new transaction of *client* that is refused unless *condition* holds."""
    transaction = client.transaction()
    condition.add_to(transaction)
    return transaction


def commit(transaction: Any) -> TransactionResult:
    """Commit *transaction*, in blocking code. Another error than a failed condition is raised as kazoo raises it."""
    try:
        return _held(transaction.commit())
    except (ConnectionLoss, SessionExpiredError) as exc:
        raise OutcomeUnknown("zookeeper", OUTCOME) from exc


async def commit_async(transaction: Any) -> TransactionResult:
    """Commit *transaction* like `commit`, in async code."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    answer = transaction.commit_async()
    answer.rawlink(lambda _: None if loop.is_closed() else loop.call_soon_threadsafe(done.set))
    await done.wait()
    try:
        return _held(answer.get(block=False))
    except (ConnectionLoss, SessionExpiredError) as exc:
        raise OutcomeUnknown("zookeeper", OUTCOME) from exc


def _held(results: list[Any]) -> TransactionResult:
    if isinstance(results[0], NoNodeError):
        return TransactionResult(False, [])
    for result in results:
        if isinstance(result, Exception):
            causes = [each for each in results if isinstance(each, Exception) and _is_a_cause(each)]
            raise (causes or [result])[0]
    return TransactionResult(True, results[1:])


def _is_a_cause(error: Exception) -> bool:
    return type(error).__name__ not in {"RolledBackError", "RuntimeInconsistency"}
