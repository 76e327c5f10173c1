"""The embedded store: one SQLite file that all processes of this user on this machine share.

A grant is a row. It is free when it was given back, when its time on the boot clock is over, when the machine has
restarted since, or at once when the process that holds it is gone, which its liveness file shows. Those who wait
have a ticket and a bell: whoever frees the lock rings the first one's, and for a tenth of a second keeps the lock
for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dibs.errors import LossReason
from dibs.holder import Holder, LockState, Record
from dibs.ports.db.session import Session
from dibs.runtime import Runtime
from dibs.share import share_of
from dibs.stores.guarantees import Bound, Effect, Guarantees, Promise
from dibs.stores.record_store import RecordStore
from dibs.stores.sqlite import grant as sqlite_grant
from dibs.stores.sqlite import lease as sqlite_keep
from dibs.stores.sqlite import records as sqlite_records
from dibs.stores.sqlite import shares as sqlite_shares
from dibs.stores.sqlite import view as sqlite_view
from dibs.stores.sqlite import wakeup as sqlite_next
from dibs.stores.sqlite.deaths import bury
from dibs.stores.sqlite.port.database import Database
from dibs.stores.sqlite.port.runner import Port, port_for
from dibs.stores.sqlite.schema import prepare
from dibs.stores.sqlite.url import file_of
from dibs.stores.store import Ask, Busy, Claim, Grant


def open_url(url: str, namespace: str, runtime: Runtime) -> SQLiteStore:
    """Make the store for the file that *url* names."""
    file = file_of(url)
    database = Database(file.path, namespace, runtime.now, prepare, bury, trusted=file.trusted)
    return SQLiteStore(port_for(database, runtime), runtime)


class SQLiteStore(RecordStore):
    """Locks in an SQLite file. Each step is a plain function that the port runs on the database."""

    shortest_ttl: ClassVar[float] = 0.05
    guarantees: ClassVar[Guarantees] = Guarantees(
        name="sqlite",
        good_for="All programs of one user on one machine: no server, no setup, and freed at once by a crash.",
        fence="The wall clock in µs, or one more than the last fence in the row, whichever is higher. Losing the file "
        "and setting the clock back at the same time could make it fall.",
        wake="Whoever frees the lock rings the bell (a named pipe) of the first in line; that one also looks every "
        "25 ms.",
        order="In the order of arrival; a first in line that does not come within 0.1 s loses its place.",
        freed="At once when the process has ended, else when the ttl is over.",
        waiter_crash=Bound(
            1.0,
            "Each client keeps a file of its own locked; the kernel unlocks it when the process ends.",
        ),
        client_pause=Promise(
            Effect.FENCED,
            "A process that stands still does not renew: its lease ends after the ttl and the next one gets the lock. "
            "A guard that checks the fence refuses what the first one writes when it goes on.",
        ),
        client_crash=Promise(
            Effect.FREED, "The kernel drops the lock on the liveness file of a process that ends, however it ends."
        ),
        server_restart=Promise(
            Effect.CANNOT_HAPPEN,
            "There is no server. A restart of the machine ends all processes and all leases; the fence goes on rising.",
        ),
        failover=Promise(Effect.CANNOT_HAPPEN, "There is one file."),
        partition=Promise(Effect.CANNOT_HAPPEN, "There is no network: network file systems are refused."),
        clock_jump=Promise(
            Effect.KEPT,
            "Leases are measured on the boot clock, which nobody can set and which counts suspend; on macOS it stands "
            "still in suspend, for the holder and the store alike.",
        ),
    )

    def __init__(self, port: Port, runtime: Runtime) -> None:
        self._port, self._runtime = port, runtime

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._port.database.url} namespace={self._port.database.namespace!r}>"

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """One statement if the lock is free and nobody waits."""
        share = ask.share
        if share is not None:
            return await self._port.call(within, sqlite_shares.grant, ask, share)
        return await self._port.call(within, sqlite_grant.grant, ask)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One transaction for all."""
        return await self._port.call(within, sqlite_keep.renew, claims)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """One statement, and one byte into the pipe of the next."""
        if share_of(token) is not None:
            return await self._port.call(within, sqlite_shares.release, name, token)
        return await self._port.call(within, sqlite_keep.release, name, token)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Wait for the bell, and look now and then without writing: nobody rings for a holder that was killed."""
        now, bell = self._runtime.now, self._port.database.bell(ask.token)
        until, look = now() + min(within, busy.retry_in), sqlite_next.FIRST_LOOK
        while (left := until - now()) > 0:
            pause = min(look, left)
            if bell is None or bell.fd < 0:
                await self._runtime.sleep(pause)
            elif await self._runtime.readable(bell.fd, pause):
                return bell.hush()
            look = await self._port.call(max(left, 0.01), sqlite_next.next_look, ask)
            if look <= 0:
                return None
        return None

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Compare the fence and break the grant in one transaction."""
        return await self._port.call(within, sqlite_keep.evict, name, fence, reason)

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Those whose lease runs and whose process lives."""
        return await self._port.call(within, sqlite_view.holders, prefix)

    async def show(self, name: str, within: float) -> LockState:
        """The row, the queue, and the last eviction."""
        return await self._port.call(within, sqlite_view.show, name)

    async def time(self, name: str, within: float) -> float:
        """The wall clock of this machine."""
        return self._port.database.wall_clock() / 1e6

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Put this process's facts and its liveness file into the row."""
        await self._port.call(within, sqlite_keep.attach, claim, note)

    async def detach(self, claim: Claim, within: float) -> None:
        """Take the liveness file out of the row."""
        await self._port.call(within, sqlite_keep.detach, claim)

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        """A look; and one statement that looks again, if the lock is free, nobody waits, and there is no record."""
        return await self._port.call(within, sqlite_records.grant_unless_recorded, ask, after)

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """One transaction, on the disk before it returns."""
        return await self._port.call(within, sqlite_records.remember, claim, data, keep)

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """One transaction, on the disk before it returns."""
        return await self._port.call(within, sqlite_records.finish, claim, data, keep)

    async def finish_on(self, conn: Session, claim: Claim, data: bytes, keep: float) -> LossReason | None:
        """Two statements, on the caller's connection to the same file."""
        return await sqlite_records.finish_on(self._port.database, conn, claim, data, keep)

    async def record(self, name: str, within: float) -> Record | None:
        """The row."""
        return await self._port.call(within, sqlite_records.record, name)

    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        """Rows, the latest first."""
        return await self._port.call(within, sqlite_records.records, prefix, most)

    async def forget(self, name: str, fence: int, within: float) -> bool:
        """One statement."""
        return await self._port.call(within, sqlite_records.forget, name, fence)

    async def close(self) -> None:
        """Close the files; the end of the liveness file frees what is still held."""
        await self._port.close()

    def inheritable(self) -> tuple[int, ...]:
        """The liveness file: a child that inherits it keeps what is held alive."""
        return self._port.database.descriptors()

    def forked(self) -> None:
        """Begin anew in a forked child."""
        self._port.forked()
