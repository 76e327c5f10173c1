"""One idempotent call, as the block that does the work sees it: whether it has to, and where the result goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from dibs.core.copying import NotCopied
from dibs.core.idempotent.outcome import DONE, FAILED, Outcome, is_about_another, marked, shortened
from dibs.core.record import checked_record
from dibs.errors import KeyReused, LeaseLost, LossReason, Misuse
from dibs.ports.db.session import Session, session_of
from dibs.runtime import run
from dibs.stores.record_store import record_store

if TYPE_CHECKING:
    from dibs.core.lease import Lease
    from dibs.holder import Holder
    from dibs.stores.store import Store


class Codec(NamedTuple):
    """How results become bytes, and bytes results."""

    dump: Callable[[Any], bytes]
    load: Callable[[bytes], Any]


class Call(NotCopied):
    """What entering an idempotent block gives: ``if not call.replayed: call.done(charge())``, then ``call.result``."""

    __slots__ = (
        *("_store", "_codec", "_fingerprint", "_keep", "_lease", "_outcome", "_record", "_result"),
        *("_committed", "key"),
    )

    _instead = "the key and the result are what others may know of it"

    key: str
    """What the call is known by."""

    def __init__(self, store: Store, key: str, fingerprint: str | None, codec: Codec, keep: float) -> None:
        self._store, self.key = store, key
        self._fingerprint, self._codec, self._keep = fingerprint, codec, keep
        self._lease: Lease | None = None
        self._outcome = Outcome("running", fingerprint, 1, None, b"")
        self._result: Any = None
        self._record = b""
        self._committed = False

    @property
    def replayed(self) -> bool:
        """Whether the work was done before, so that it must not be done now, and `result` is what it returned."""
        return self._lease is None

    @property
    def result(self) -> Any:
        """What the work returned: now, or when it was done.

        `Misuse` before `done`, and on a replay if the result could not be kept at the time.
        """
        if self._outcome.state != DONE:
            raise Misuse(f"the call {self.key!r} has no result yet; say done(result) when the work is done")
        if self.replayed and self._outcome.error is not None:
            raise Misuse(
                f"the work of {self.key!r} was done, but its result was not kept ({self._outcome.error}); it is not "
                "done again"
            )
        return self._result

    @property
    def lease(self) -> Lease:
        """The lease under which the work is done: ``call.lease.check()`` before a long step. `Misuse` on a replay."""
        if self._lease is None:
            raise Misuse(f"the call {self.key!r} was done before, so nothing is held, and nothing is to be done now")
        return self._lease

    @property
    def fence(self) -> int:
        """The fence of the lease, to pass on to what the work writes to."""
        return self.lease.fence

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; on a replay, which it was. One that was killed left no trace to count."""
        return self._outcome.attempt

    @property
    def last_error(self) -> str | None:
        """Why the attempt before this one failed, in one line; None if none is known to have failed."""
        return self._outcome.error if self._outcome.state == FAILED else None

    def done(self, result: Any = None) -> None:
        """The work is done, and *result* is what every later call with this key gets.

        It is written when the block ends, also if the block ends with an error after this. A result that cannot be
        written as bytes, or has too many, is `Misuse`: the work counts as done all the same, and has no result.
        """
        self.lease.check()
        if self._committed:
            raise Misuse(f"the call {self.key!r} was said to be done with commit(), whose transaction decides about it")
        self._set(result)

    def commit(self, conn: Any, result: Any = None) -> Any:
        """Write the record in the transaction that *conn* is in, so that work and record are committed in one step.

        *conn* is your connection to the database that the store is in: of sqlite3, psycopg, asyncpg, SQLAlchemy or
        Django; with one for async code the call is awaited. Call it last, right before the commit: from here on the
        row of the key is locked. `LeaseLost` means that another may have done the work: let the error undo yours.
        """
        session = session_of(conn)
        return run(self._commit(session, result)) if session.blocking else self._commit(session, result)

    def __repr__(self) -> str:
        state = "replayed" if self.replayed else f"fence={self.fence} attempt={self.attempt}"
        return f"<Call {self.key!r} {state}>"

    # --- for the block -------------------------------------------------------------------------------------

    def _begin(self, lease: Lease, before: Outcome | None) -> None:
        """The work is to be done under *lease*, after an attempt that failed."""
        self._lease = lease
        if before is not None:
            self._outcome = before._replace(attempt=before.attempt + 1, fingerprint=self._fingerprint, result=b"")

    def _replay(self, outcome: Outcome) -> None:
        """The work was done before."""
        self._outcome = outcome
        if outcome.error is None:
            self._result = self._codec.load(outcome.result)

    def _is_done(self) -> bool:
        """Whether somebody said so."""
        return self._outcome.state == DONE

    def _success(self) -> bytes:
        """The record that says it is done."""
        if not self._is_done():
            with suppress(Exception):  # of a dump that knows no None: then it is done, and has no result
                self._set(None)
        return self._record

    def _drop(self) -> None:
        """Give the lease up where nothing can be awaited. What is done is not given back without its record."""
        if self._is_done():
            self.lease._end("finished")
        else:
            self.lease._leave()

    def _failure(self, error: BaseException) -> bytes:
        """The record that says it failed."""
        return self._outcome._replace(state=FAILED, error=shortened(error), result=b"").to_bytes()

    def _check_same(self, outcome: Outcome, fence: int) -> None:
        """Refuse a key that stands for something else, where both say what they are about."""
        if None not in (outcome.fingerprint, self._fingerprint) and outcome.fingerprint != self._fingerprint:
            raise KeyReused(self.key, fence)

    def _check_holder(self, holder: Holder) -> None:
        """Refuse the key if the note of the call that is running says that it is used for something else."""
        if is_about_another(holder.note, self._fingerprint):
            raise KeyReused(self.key, holder.fence)

    def _marked(self, note: str) -> str:
        """The *note* for callers that come while this call runs."""
        return marked(note, self._fingerprint)

    def _set(self, result: Any) -> None:
        self._result = result
        try:
            data = self._codec.dump(result)
            if not isinstance(data, bytes):
                raise Misuse(f"dump() of the call {self.key!r} returned {type(data).__name__}: it has to return bytes")
            outcome = self._outcome._replace(state=DONE, error=None, result=data)
            self._record = checked_record(outcome.to_bytes(), self.key)
        except BaseException as exc:  # the work is done all the same, and not to be done again
            self._outcome = self._outcome._replace(state=DONE, error=shortened(exc), result=b"")
            self._record = self._outcome.to_bytes()
            raise
        self._outcome = outcome

    async def _commit(self, session: Session, result: Any) -> None:
        lease = self.lease
        lease.check()
        if not await session.lasts():
            raise Misuse("commit() belongs into the transaction of the work, and this connection is in none")
        before = self._outcome, self._result, self._record
        try:
            self._set(result)
            reason = await record_store(self._store).finish_on(session, lease._claim, self._record, self._keep)
            if reason is not None:
                raise self._refused(reason)
        except BaseException:  # the work is undone with its transaction, so it does not count as done
            self._outcome, self._result, self._record = before
            raise
        self._committed = True

    def _refused(self, reason: LossReason) -> Exception:
        """Why there is no lease to commit with; after a commit that was undone there is one, and it is said again."""
        if self._committed:
            return Misuse(
                f"commit() of the call {self.key!r} was said before: if that transaction was committed, the call is "
                "done; if it was undone, the lease has been lost since. Let this error undo what was done after it"
            )
        lost = LeaseLost(self.key, self.fence, reason)
        lost.add_note(_SNAPSHOT)
        return lost


_SNAPSHOT = (
    "or the transaction does not see the lease: one that is not READ COMMITTED has to begin after the call, "
    "in the block"
)
