"""A condition for a transaction of the caller's own KazooClient, and that transaction's commit in either colour."""

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
    """The node of a lease is there: nobody else has the lock."""

    path: str
    """From the root of the ensemble's tree, whatever chroot the client has."""

    def add_to(self, transaction: Any) -> None:
        """Let *transaction*, of `KazooClient.transaction`, fail as a whole unless the lease holds.

        Its result then has a `kazoo.exceptions.NoNodeError` at this place.
        """
        chroot = transaction.client.chroot
        if chroot and not self.path.startswith(f"{chroot}/"):
            raise Misuse(f"the lock is at {self.path}, which a client with the chroot {chroot} cannot see")
        transaction.check(self.path[len(chroot) :], -1)


class Held(NamedTuple):
    """What came out of a transaction that began with a condition."""

    holds: bool
    """Whether the lease did; if not, nothing was done."""
    results: list[Any]


def begun(client: Any, condition: Condition) -> Any:
    """A transaction of *client* that is refused unless *condition* holds."""
    transaction = client.transaction()
    condition.add_to(transaction)
    return transaction


def commit(transaction: Any) -> Held:
    """Do it, in blocking code. If something else than the condition is in the way, that is raised as kazoo says it."""
    try:
        return _held(transaction.commit())
    except (ConnectionLoss, SessionExpiredError) as exc:
        raise OutcomeUnknown("zookeeper", OUTCOME) from exc


async def commit_async(transaction: Any) -> Held:
    """The same in async code."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    answer = transaction.commit_async()
    answer.rawlink(lambda _: None if loop.is_closed() else loop.call_soon_threadsafe(done.set))
    await done.wait()
    try:
        return _held(answer.get(block=False))
    except (ConnectionLoss, SessionExpiredError) as exc:
        raise OutcomeUnknown("zookeeper", OUTCOME) from exc


def _held(results: list[Any]) -> Held:
    if isinstance(results[0], NoNodeError):
        return Held(False, [])
    for result in results:
        if isinstance(result, Exception):
            causes = [each for each in results if isinstance(each, Exception) and _is_a_cause(each)]
            raise (causes or [result])[0]
    return Held(True, results[1:])


def _is_a_cause(error: Exception) -> bool:
    return type(error).__name__ not in {"RolledBackError", "RuntimeInconsistency"}
