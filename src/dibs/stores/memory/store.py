"""The store inside one process: for tests, for teaching, and where threads or tasks of one process contend."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from dibs.errors import LossReason, Misuse
from dibs.holder import Holder, LockState, Record, here, signature
from dibs.runtime import Runtime
from dibs.runtime.clock import boot_time
from dibs.stores.doubt import MARKED_FOR
from dibs.stores.guarantees import Bound, Effect, Guarantees, Promise
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.record_store import RecordStore, latest
from dibs.stores.store import Ask, Busy, Claim, Grant

LONGEST_LISTEN = 0.2
"""Seconds after which a waiter asks again without a hint: the first in line may stand still."""

_servers: dict[str, MemoryServer] = {}


class MemoryStore(RecordStore):
    """Grants from a table of this process; nothing outlives it and nobody else sees it."""

    guarantees = Guarantees(
        name="memory",
        good_for="tests, and threads or tasks of one process",
        fence="max(last + 1, wall clock in µs), in this process's memory",
        wake="an event",
        order="arrival",
        freed="after the ttl, or with the process",
        waiter_crash=Bound(0.0, "All waiters are in the same process and die with it."),
        client_pause=Promise(Effect.FENCED, "the lease ends by time, and another thread or task gets it"),
        client_crash=Promise(Effect.FREED, "everything ends with the process"),
        server_restart=Promise(Effect.CANNOT_HAPPEN, "there is no server"),
        failover=Promise(Effect.CANNOT_HAPPEN, "there is no replica"),
        partition=Promise(Effect.CANNOT_HAPPEN, "there is no network"),
        clock_jump=Promise(Effect.KEPT, "leases are timed by the boot clock"),
    )

    def __init__(self, server: MemoryServer, namespace: str, runtime: Runtime) -> None:
        self._server, self._space, self._runtime = server, namespace, runtime

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Take it in one step."""
        who = here(self._runtime.pid(), ask.name, ask.note)
        answer = self._server.grant(self._space, who, ask.token, ask.ttl, queue=ask.queue)
        return Grant(answer, ask.ttl) if isinstance(answer, int) else Busy(*answer)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """Extend each."""
        return [self._server.renew(self._space, *claim) for claim in claims]

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Give back the grant or the ticket."""
        return self._server.release(self._space, name, token)

    async def give_back(self, name: str, token: str) -> LossReason | None:
        """Do what `release` does where a network between may deliver an ask of *token* later; see `Doubts`."""
        return self._server.give_back(self._space, name, token, MARKED_FOR)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Wait for the hint of a release."""
        event = self._runtime.event()
        if self._server.on_hint(self._space, ask.name, ask.token, event.set):
            return
        try:
            await event.wait(min(within, LONGEST_LISTEN))
        finally:
            self._server.on_hint(self._space, ask.name, ask.token, None)

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Break it in one step."""
        by = signature(here(self._runtime.pid(), name, ""))
        return self._server.evict(self._space, name, fence, reason, by)

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """List them."""
        names = [name for name in self._server.names(self._space) if name.startswith(prefix)]
        return [holder for name in names for holder in self._server.show(self._space, name).holders]

    async def show(self, name: str, within: float) -> LockState:
        """Show the record."""
        return self._server.show(self._space, name)

    async def time(self, name: str, within: float) -> float:
        """The wall clock of this machine."""
        return self._server.wall_us() / 1e6

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Show this client as the holder."""
        self._server.adopt(self._space, here(self._runtime.pid(), claim.name, note), claim.token)

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        """Look and take in one step."""
        who = here(self._runtime.pid(), ask.name, ask.note)
        answer = self._server.grant_unless_recorded(self._space, who, ask.token, ask.ttl, after, queue=ask.queue)
        if isinstance(answer, Record):
            return answer
        return Grant(answer, ask.ttl) if isinstance(answer, int) else Busy(*answer)

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Write it in one step."""
        return self._server.remember(self._space, *claim[:3], data, keep)

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Write and release in one step."""
        return self._server.finish(self._space, *claim[:3], data, keep)

    async def record(self, name: str, within: float) -> Record | None:
        """Look it up."""
        return self._server.record(self._space, name)

    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        """List them."""
        return latest(self._server.records(self._space, prefix), most)

    async def forget(self, name: str, fence: int, within: float) -> bool:
        """Remove it."""
        return self._server.forget(self._space, name, fence)

    def __repr__(self) -> str:
        return f"memory: namespace {self._space!r}"


def open_url(url: str, namespace: str, runtime: Runtime) -> MemoryStore:
    """``memory:`` is one table for the whole process, ``memory:NAME`` another one for each name."""
    name = unquote(url.partition(":")[2])
    if name.startswith("/"):
        raise Misuse("write memory: or memory:NAME; there is no path, no host and no password in such a URL")
    server = _servers.get(name) or _servers.setdefault(name, MemoryServer(boot_time))
    return MemoryStore(server, namespace, runtime)
