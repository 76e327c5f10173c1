"""Reads the keys of Consul, for the steps of locks and for people."""

from __future__ import annotations

from dibs.holder import Holder, LockState
from dibs.runtime import Runtime
from dibs.stores.consul.keys import ConsulKeys, ConsulNaming
from dibs.stores.consul.port.agent import Agent, ConsulRefusal
from dibs.stores.consul.txn import locked, seen
from dibs.stores.consul.view import ENDLESS, ConsulView, by_name, view

NO_SESSION = "00000000-0000-0000-0000-000000000000"
"""The id of no session: an ask with it is refused, and the refusal says whether a lock-delay runs."""

CLOSED = "the session of the last holder ended, and Consul keeps the lock closed for its lock-delay"


class ConsulReader:
    """Reads one namespace on behalf of one client."""

    def __init__(self, agent: Agent, naming: ConsulNaming, runtime: Runtime) -> None:
        self._agent, self._naming, self._runtime = agent, naming, runtime

    async def look(self, keys: ConsulKeys, until: float) -> ConsulView:
        """Read all keys of one name."""
        answer = await self._agent.read([seen(keys.all)], until - self._runtime.now())
        return view(keys, [] if isinstance(answer, ConsulRefusal) else answer)

    async def holders(self, prefix: str, until: float) -> list[Holder]:
        """The holders of all names that begin with *prefix*, in the order of the names."""
        entries = await self._agent.read([seen(self._naming.under(prefix))], until - self._runtime.now())
        found = by_name([] if isinstance(entries, ConsulRefusal) else entries, self._naming.name)
        views = {name: view(self._naming.keys(name), group) for name, group in found.items()}
        stuck = {name: await self.stuck(each, until) for name, each in views.items()}
        holders = [views[name].holder(name, stuck[name]) for name in sorted(views)]
        return [holder for holder in holders if holder is not None]

    async def show(self, name: str, until: float) -> LockState:
        """Everything that the keys of *name* tell, and whether a lock-delay runs."""
        keys = self._naming.keys(name)
        found, closed = await self.look(keys, until), False
        if found.is_free:
            answer = await self._agent.txn([locked(keys.held, NO_SESSION, b"")], until - self._runtime.now())
            closed = isinstance(answer, ConsulRefusal) and answer.by_delay
        return found.state(name, (CLOSED,) if closed else (), await self.stuck(found, until))

    async def stuck(self, found: ConsulView, until: float) -> str:
        """Why a lock of another program does not end by itself, and how to remove it; empty if it ends, or is ours."""
        session = found.foreign
        if session and await self._agent.never_ends(session, max(0.01, until - self._runtime.now())):
            return ENDLESS.format(session)
        return ""
