"""One connection that carries transactions, sent whole and at once, and knows which answers it has not had yet.

A transaction is a list of statements. All of it goes out in one write, in libpq's pipeline mode, and nothing of it
waits for this process: one that is stopped in the middle never keeps a row locked. An answer that was not waited for
(a timeout, a cancel, Ctrl-C) is still owed, and is taken before anything else is sent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
from collections.abc import Sequence

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.fork import never_close
from dibs.runtime import Runtime
from dibs.stores.postgres.port.driver import PGconn, PGresult, pq, psycopg
from dibs.stores.postgres.port.errors import RENEW_CONNECTION, code_of, refused
from dibs.stores.postgres.port.statement import (
    BEGIN,
    COMMIT,
    OF_HOSTILE,
    OF_SESSION,
    OF_TRANSACTION,
    Call,
    Rows,
    Transaction,
    Value,
    bound_of,
)

_DONE = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}


class Line:
    """A connection for one step at a time."""

    def __init__(self, connection: PGconn, store: str, runtime: Runtime) -> None:
        self.fd = connection.socket
        self.pid = 0
        """The process that serves it, as the server itself says."""
        self.pooled = True
        """Whether a pooler may give us another session for each transaction, as far as we know: nothing is kept in
        it then, not even a prepared statement."""
        self.hostile = False
        """Whether its sessions, if others share them, have settings under which we cannot work."""
        self.commit = b""
        """The synchronous_commit of what is written; empty: the server's own, but never "off", since a grant that a
        crash can forget is two holders."""
        self.broken = False
        self._bound = 0
        """The lock_timeout of the session; 0 if it is not known."""
        self._pg, self._store, self._runtime = connection, store, runtime
        self.user = (connection.user or b"").decode(errors="replace")
        """Whose rights count, as far as we know."""
        self._prepared: set[bytes] = set()
        self._due = 0
        """Transactions whose end has not come."""
        self._calls: list[Call | bytes] = []
        """What was sent: a statement that is prepared, or a call."""
        self._results: list[PGresult] = []
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        connection.enter_pipeline_mode()

    @property
    def owes(self) -> bool:
        """Whether an answer has not been taken yet."""
        return self._due > 0

    @property
    def claimed_pid(self) -> int:
        """The process that serves it, as was said at the connect; a pooler says something of its own."""
        return self._pg.backend_pid

    async def run(self, until: float, *transactions: Transaction) -> list[Rows]:
        """Carry out *transactions*, each as a whole, and return the rows of each statement."""
        self.send(*transactions)
        return await self.answer(until)

    async def run_bounded(self, until: float, *transactions: Transaction) -> list[Rows]:
        """The same, and no statement waits for a row until after *until*, not even when we have given up by then."""
        bound = bound_of(until - self._runtime.now())
        if not self.pooled and bound == self._bound:
            return await self.run(until, *transactions)
        values = (str(bound).encode(), self.commit)
        if self.pooled and self.hostile:
            return await self._framed(until, values, transactions)
        if self.pooled:
            bounded = [[Call(OF_TRANSACTION, values), *transaction] for transaction in transactions]
            return _between(await self.run(until, *bounded), bounded, 1, 0)
        self._bound = 0
        _, *found = await self.run(until, [Call(OF_SESSION, values)], *transactions)
        self._bound = bound
        return found

    def send(self, *transactions: Transaction) -> None:
        """Send *transactions* and do not wait."""
        assert not self._due
        self._learn()
        self._calls, self._results = [], []
        pg = self._pg
        try:
            for transaction in transactions:
                for call in transaction:
                    self._send(pg, call)
                pg.pipeline_sync()
                self._due += 1
            pg.flush()
        except psycopg.Error as exc:
            raise self._broke(exc) from exc
        except BaseException:  # Ctrl-C: nobody knows what is due
            self.broken = True
            raise

    async def answer(self, until: float) -> list[Rows]:
        """Wait for the answers to what was sent. They stay owed if they do not come before *until*."""
        await self._collect(until)
        return self._rows()

    async def settle(self, until: float) -> bool:
        """Take the answers that are still owed, and forget them; False if they do not come."""
        try:
            await self._collect(until)
        except StoreUnavailable:
            return False
        return True

    def heard(self) -> bool:
        """Whether all answers have come; this takes no time."""
        try:
            if self._due:
                self._pg.consume_input()
                self._take()
        except psycopg.Error:
            self.broken = True
        return not self._due

    def alive(self) -> bool:
        """Whether it can be used: idle, and the server has not ended it. It costs about 1 µs."""
        if self.broken or self._due:
            return False
        while not self.broken and self._poll.poll(0):  # it speaks although nothing was asked: a notice, or goodbye
            try:
                self._pg.consume_input()
                self._pg.is_busy()
            except psycopg.Error:
                self.broken = True
        return not self.broken

    def notifications(self) -> list[str]:
        """What has come by LISTEN."""
        self._pg.consume_input()
        return list(iter(self._notified, None))

    def last_words(self) -> set[str]:
        """What has come by LISTEN on a connection that is over, as far as it can still be read."""
        with contextlib.suppress(psycopg.Error):
            while self._poll.poll(0):
                self._pg.consume_input()
                self._pg.is_busy()
        with contextlib.suppress(psycopg.Error):
            return set(iter(self._notified, None))
        return set()

    def _notified(self) -> str | None:
        notify = self._pg.notifies()
        return notify.extra.decode(errors="replace") if notify else None

    def close(self) -> None:
        """End it; the server frees what its session holds."""
        self.broken = True
        self._pg.finish()

    def leave_to_parent(self) -> None:
        """In a forked child: give up the socket without a word, so that the parent's session goes on.

        The descriptor is closed, since the server would not notice the parent's end while we have it.
        """
        self.broken = True
        never_close(self._pg)
        with contextlib.suppress(OSError):
            os.close(self.fd)

    # ---------------------------------------------------------------------------------------------------------

    async def _framed(self, until: float, values: Sequence[Value], transactions: Sequence[Transaction]) -> list[Rows]:
        """Say in each transaction what it needs. What an error leaves open ends with the connection."""
        settings = Call(OF_HOSTILE, values)
        framed = [[Call(BEGIN), settings, *transaction, Call(COMMIT)] for transaction in transactions]
        try:
            return _between(await self.run(until, *framed), framed, 2, 1)
        except StoreUnavailable:
            self.broken = self.broken or not self._due
            raise

    def _send(self, pg: PGconn, call: Call) -> None:
        name, sql = call.statement.name, call.statement.sql
        if self.pooled:
            pg.send_query_params(sql, call.values)
        else:
            if name not in self._prepared and name not in self._calls:
                pg.send_prepare(name, sql)
                self._calls.append(name)
            pg.send_query_prepared(name, call.values)
        self._calls.append(call)

    async def _collect(self, until: float) -> None:
        readable, now = self._runtime.readable, self._runtime.now
        try:
            self._take()
            while self._due:
                if not await readable(self.fd, max(0.0, until - now())):
                    raise OutcomeUnknown(self._store, "the server has not answered in time")
                self._pg.consume_input()
                self._take()
        except psycopg.Error as exc:
            raise self._broke(exc) from exc

    def _take(self) -> None:
        """Take the answers that are here."""
        pg = self._pg
        if self._due and pg.flush():  # the rest of a request that was too long for one write
            return
        try:
            self._take_results(pg)
        except BaseException:  # Ctrl-C: perhaps between having a result and keeping it
            self.broken = True
            raise
        if pg.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError(pg.get_error_message())

    def _take_results(self, pg: PGconn) -> None:
        nothing = 0
        while self._due and nothing < 2 and not pg.is_busy():
            result = pg.get_result()
            if result is None:  # between two statements; twice in a row: there is no more for now
                nothing += 1
                continue
            nothing = 0
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._due -= 1
            else:
                self._results.append(result)

    def _rows(self) -> list[Rows]:
        if len(self._calls) == 1 and self._results[0].status in _DONE:  # the usual case
            return [_decoded(self._results[0])]
        found = []
        for sent, result in zip(self._calls, self._results, strict=True):
            if result.status not in _DONE:
                raise self._error()
            if isinstance(sent, Call):
                found.append(_decoded(result))
        return found

    def _learn(self) -> None:
        """Remember which statements the server has prepared; before the next request, as no interrupt can skip it."""
        for sent, result in zip(self._calls, self._results, strict=False):
            if isinstance(sent, bytes) and result.status == pq.ExecStatus.COMMAND_OK:
                self._prepared.add(sent)

    def _error(self) -> StoreUnavailable:
        failed = next(result for result in self._results if result.status == pq.ExecStatus.FATAL_ERROR)
        if code_of(failed) in RENEW_CONNECTION:
            self.broken = True
        return refused(self._store, failed, self.user)

    def _broke(self, error: psycopg.Error) -> StoreUnavailable:
        """The connection is gone, and with it the answers."""
        self.broken = True
        for result in self._results:
            if result.status == pq.ExecStatus.FATAL_ERROR:  # its last words say why
                told = refused(self._store, result, self.user)
                return told if isinstance(told, OutcomeUnknown) else OutcomeUnknown(self._store, told.problem)
        said = " ".join(str(error).split())
        return OutcomeUnknown(self._store, f"the connection broke ({said or type(error).__name__})")


def _between(found: list[Rows], sent: Sequence[Transaction], first: int, last: int) -> list[Rows]:
    """What was found by all statements but the *first* ones and the *last* of each transaction."""
    rest = iter(found)
    return [rows for each in sent for rows in list(itertools.islice(rest, len(each)))[first : len(each) - last]]


def _decoded(result: PGresult) -> Rows:
    if not result.ntuples:
        return []
    columns = range(result.nfields)
    return [
        tuple(None if (value := result.get_value(row, column)) is None else value.decode() for column in columns)
        for row in range(result.ntuples)
    ]
