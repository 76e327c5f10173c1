"""The embedded store's files as the steps of the store see them, opened at the first step and after trouble."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, TypeVarTuple

from dibs.errors import StoreUnavailable
from dibs.holder import here
from dibs.stores.sqlite.port.boot_id import boot_id
from dibs.stores.sqlite.port.connection import Connection, Rows
from dibs.stores.sqlite.port.liveness import Liveness
from dibs.stores.sqlite.port.location import Place
from dibs.stores.sqlite.port.wake_pipe import Bell, Bells

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class Database:
    """The database at *path* and what lies beside it. Used by one thread at a time."""

    rows: Callable[..., Rows]
    """Execute one statement and return its rows. The bound method of the connection, to save a call."""
    changed: Callable[..., int]
    """Execute one statement and tell how many rows it wrote."""
    transaction: Callable[[], AbstractContextManager[None]]
    """What is executed within happens as a whole or not at all."""
    snapshot: Callable[[], AbstractContextManager[None]]
    """What is read within is of one moment."""

    def __init__(
        self,
        path: str,
        namespace: str,
        now: Callable[[], float],
        prepare: Callable[[Database], None],
        bury: Callable[[Database, set[str]], None],
        *,
        trusted: bool = False,
    ) -> None:
        """*prepare* makes the tables; *bury* notes in them that clients have ended, before their proof is deleted."""
        self.namespace, self.place, self.url = namespace, Place(path, trusted=trusted), f"sqlite://{path}"
        self._now, self._prepare, self._bury = now, prepare, bury
        self.held: set[str] = set()
        """Tokens that may have been granted to this client and not given back."""
        self._connection: Connection | None = None
        self._live: Liveness | None = None
        self._bells: Bells | None = None
        self.pid, self.host, self.user, self.boot = 0, "", "", ""

    # What a step may use.

    def row(self, sql: str, values: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """Execute one statement and return its first row, if it has one."""
        found = self.rows(sql, values)
        return found[0] if found else None

    def moment(self) -> int:
        """Now in µs on the boot clock, which all processes of this machine share and nobody can set."""
        return int(self._now() * 1e6)

    def wall_clock(self) -> int:
        """Unix time in µs: for people, and for the fence, which only ever rises."""
        return time.time_ns() // 1000

    @property
    def process(self) -> str:
        """What others know this client by, to see whether it lives."""
        assert self._live is not None
        return self._live.process

    def dead(self, process: str | None) -> bool:
        """Whether *process* has certainly ended. None stands for a lease that only its ttl bounds."""
        assert self._live is not None
        return process is not None and self._live.dead(process)

    def alive(self, process: str) -> bool:
        """Whether *process* is certainly there: one whose file was deleted by others comes back with a new one."""
        assert self._live is not None
        return self._live.alive(process)

    def be_seen(self) -> None:
        """See to it that others see that we live. What was granted before our file was deleted ends by its ttl."""
        if self._live is not None and not self._live.shown():
            try:
                self.place.prepare_beside()
                self._appear()
            except OSError as exc:
                raise self._no_access(exc) from exc

    @property
    def bells(self) -> Bells:
        """How to wake waiters, and how to be woken."""
        assert self._bells is not None
        return self._bells

    # What the port does with it.

    def run(self, until: float, step: Callable[[Database, *Ts], T], *args: *Ts) -> T:
        """Do *step*, until the moment *until* at most."""
        connection = self._connection
        if connection is None or connection.broken or connection.adrift():
            connection = self._open(until)
        connection.until = until
        try:
            return step(self, *args)
        except BaseException:
            connection.undo()  # Ctrl-C may come between BEGIN and who would undo it
            raise

    def bell(self, token: str) -> Bell | None:
        """The bell of the one who waits with *token*. Other threads may ask."""
        return self._bells.of(token) if self._bells else None

    def descriptors(self) -> tuple[int, ...]:
        """What a child must inherit to keep alive what this process holds."""
        return (self._live.fd,) if self._live else ()

    def close(self) -> None:
        """Close all files; what this client still holds is free from now on."""
        self._disconnect()
        self.end_life()

    def rest(self) -> None:
        """Close the database until the next step; what this client holds stays held.

        Before a fork. All connections of a process to one file share SQLite's knowledge of its locks and of its log,
        so a child that inherits one believes that it has its parent's locks. Nobody else sees them: when the parent
        had ended, the log was tidied away under the child, which then gave away locks beside all others.
        """
        self._disconnect()

    def forked(self, *, resting: bool) -> None:
        """In a forked child: drop all that is the parent's without a trace, and begin anew at the next step.

        *resting*: no thread was in the middle of a step at that moment.
        """
        if self._connection is not None:
            self._connection.leave_to_parent(resting=resting)
        if self._bells is not None:
            self._bells.leave_to_parent()
        if self._live is not None:
            self._live.leave_to_parent()
        self._connection = self._bells = self._live = None
        self.held = set()

    def _open(self, until: float) -> Connection:
        self._disconnect()
        connection = None
        try:
            self.place.prepare()
            connection = Connection(self.place, self.url, self._now)
            self.rows, self.changed = connection.rows, connection.changed
            self.transaction, self.snapshot = connection.transaction, connection.snapshot
            connection.until = until
            self._prepare(self)
            self.place.prepare_beside()
            connection.settle()
            self._appear()
            self._connection = connection  # only now: Ctrl-C may have left any of this undone
        except OSError as exc:
            raise self._no_access(exc) from exc
        finally:
            if connection is not None and self._connection is not connection:
                connection.close()
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _appear(self) -> None:
        """Show that we live, unless we already do: after a reconnect, what we hold stays ours."""
        if self._live is not None and self._live.shown():
            return
        self.end_life()
        me = here(os.getpid(), "", "")
        self.pid, self.host, self.user, self.boot = me.pid, me.host, me.user, boot_id()
        live = Liveness(self.place.alive)
        bells = Bells(self.place.bells, live.process)
        self._bells, self._live = bells, live
        living, dead = live.census()
        bells.sweep(living)
        if dead:
            self._bury(self, dead)
            live.forget(dead)

    def end_life(self) -> None:
        """What this client still holds is free from now on."""
        if self._bells is not None:
            self._bells.end()
        if self._live is not None:
            self._live.end(leave_proof=bool(self.held))
        self._bells = self._live = None

    def _no_access(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            self.url,
            f"{error.strerror or error}: {error.filename or self.place.directory}; check the directory, its owner and "
            "permissions, and the space and the number of open files that are left, or name another file, as in "
            "sqlite:///srv/app/locks.db",
        )
