"""What a test of the contract has at hand: clients of one store, time, and things that happen at once.

A test never touches threads, tasks or clocks: it asks the world, and so it is the same test in every runtime.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from dibs.core.client import Client
from dibs.core.lease import Lease
from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Event, Runtime
from dibs.share import Share
from dibs.stores.guarantees import Ability
from dibs.stores.record_store import RecordStore, record_store
from dibs.stores.store import Ask, Claim, Grant, Store
from dibs.testing.contract.scenes import Scene
from dibs.testing.contract.watched import Watched

T = TypeVar("T")

SHORT = 1.0
"""Seconds: a ttl that a test waits out, and that a busy machine does not. Half of it is the budget of a request, also
of the first one, which opens a connection. Longer where the store cannot express it."""

PATIENCE = 20.0
"""Seconds after which something that should have happened did not. A waiter may miss a hint and ask again after 5 s;
three who let each other in may miss one each."""

STEP = 5.0
"""The *within* of a step that is not about it."""

ATTEMPTS = 10
"""How often a measurement is taken before it counts as failed: a busy machine spoils some, not ten."""


class Tries:
    """Counts what had to be tried again because the machine was busy, for a run that wants to tell the sum."""

    def __init__(self) -> None:
        self.too_many = 0


tries = Tries()


class Happening(Generic[T]):
    """Something that goes on beside the test; `result` waits for it and raises what it raised."""

    def __init__(self, world: World, main: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._main, self._over = main, world.runtime.event()
        self._result: T
        self._error: BaseException | None = None
        self._job = world.runtime.spawn(self._run, "contract")  # kept: a loop refers to its tasks only weakly

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    async def result(self) -> T:
        """What it returned."""
        assert await self._over.wait(PATIENCE), f"this has not ended within {PATIENCE:g} s: {self._main}"
        if self._error is not None:
            raise self._error
        return self._result

    async def _run(self) -> None:
        try:
            self._result = await self._main()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error
        finally:
            self._over.set()


class World:
    """One store, and whoever uses it in one test."""

    runtime: Runtime
    """The runtime of the test itself."""
    store: Store
    """The store without a client before it, for tests of single steps."""

    def __init__(self, scene: Scene, open_store: Callable[[str, Runtime], Store], short: float = SHORT) -> None:
        self._scene, self._open, self._short = scene, open_store, short
        self._names = itertools.count(1)
        self._clients: list[tuple[Client, Watched]] = []

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run *main* in this world, and close all that it opened."""
        self._scene.run(self._run(main))

    def client(self, namespace: str = "default") -> Client:
        """One more client, as another process would have it."""
        runtime = self._scene.runtime()
        wire = Watched(self._open(namespace, runtime))
        client = Client(wire, runtime)
        self._clients.append((client, wire))
        return client

    @property
    def records(self) -> RecordStore:
        """The same store, where it keeps records."""
        return record_store(self.store)

    def wire(self, client: Client) -> Watched:
        """What stands between *client* and its store, to count and to spoil steps."""
        return next(wire for known, wire in self._clients if known is client)

    def asks(self, step: str) -> int:
        """How often the clients of this test have asked their stores for *step*."""
        return sum(wire.asked[step] for _, wire in self._clients)

    def name(self) -> str:
        """A name that nothing in this test has locked yet."""
        return f"contract {next(self._names)}"

    @property
    def real(self) -> bool:
        """Whether time passes by itself, so that a busy machine can miss a moment."""
        return self._scene.real

    @property
    def kept(self) -> float:
        """A ttl for a lease that a keeper renews, also on a machine that stands still for a second."""
        return max(2.0 if self.real else 0.7, self.store.shortest_ttl)

    @property
    def short(self) -> float:
        """A ttl that is short enough to wait for its end."""
        return max(self._short, self.store.shortest_ttl)

    def ask(
        self, name: str, *, ttl: float = 30.0, queue: bool = False, note: str = "", share: Share | None = None
    ) -> Ask:
        """One attempt, with a token of its own."""
        token = self.runtime.token()
        return Ask(name, token if share is None else share.token(token), ttl, note, queue)

    async def crashed(self, name: str, ttl: float, share: Share | None = None) -> Claim:
        """A grant whose owner is gone: nobody renews it and nobody will give it back."""
        ask = self.ask(name, ttl=ttl, share=share)
        answer = await self.store.grant(ask, STEP)
        assert isinstance(answer, Grant), answer
        return Claim(name, ask.token, answer.fence, answer.ttl)

    async def lose(self, lease: Lease) -> LossReason:
        """Let the store forget a grant behind its holder's back; return the reason that the holder is to be given."""
        if Ability.HANDOVER in self.store.guarantees.cannot:  # a token says nothing to whoever did not acquire with it
            assert await self.client().evict(lease.name, fence=lease.fence)
            return LossReason.EVICTED
        await self.store.release(lease.name, lease.token, STEP)
        return LossReason.TAKEN

    def now(self) -> float:
        """The clock of the runtime."""
        return self.runtime.now()

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await self.runtime.sleep(seconds)

    def event(self) -> Event:
        """A flag to wait for."""
        return self.runtime.event()

    def begin(self, main: Callable[[], Coroutine[Any, Any, T]]) -> Happening[T]:
        """Start *main* beside the test, in a thread or task of its own."""
        return Happening(self, main)

    async def together(self, *mains: Callable[[], Coroutine[Any, Any, T]]) -> list[T]:
        """Do all at once and return their results."""
        return [await happening.result() for happening in [self.begin(main) for main in mains]]

    async def until(self, truth: Callable[[], Awaitable[bool]], within: float = PATIENCE) -> None:
        """Wait until *truth* holds; fail if it does not within so many seconds."""
        end = self.now() + within
        while not await truth():
            assert self.now() < end, f"this has not become true within {within:g} s: {truth}"
            await self.sleep(0.005)

    async def measured(self, attempt: Callable[[], Awaitable[float]], *, at_least: float, at_most: float) -> None:
        """Assert how many seconds *attempt* says it took. Too early is never right; late may be a busy machine."""
        for left in reversed(range(ATTEMPTS if self._scene.real else 1)):
            try:
                took = await attempt()
            except StoreUnavailable:  # a server on a busy machine may need longer than the time that is measured
                if not left:
                    raise
                tries.too_many += 1
                continue
            assert took >= at_least - 0.001, f"took {took:.4f} s, which is less than {at_least:g} s"
            if took <= at_most:
                return
            assert left, f"took {took:.4f} s, which is more than {at_most:g} s, {ATTEMPTS} times in a row"
            tries.too_many += 1

    async def orderly(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Assert that *attempt* found everybody served in order.

        What was let go is kept for the first in line for a moment only, and a busy machine may let that pass. So there
        a disorder counts unless the next four in a row are orderly.
        """
        if not await attempt():
            assert self._scene.real, "somebody was served before his turn"
            tries.too_many += 1
            for _ in range(4):
                assert await attempt(), "somebody was served before his turn, and again"

    async def _run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.runtime = self._scene.runtime()
        self.runtime.enter()
        self.store = self._open("default", self.runtime)
        try:
            await main()
        finally:
            for client, wire in self._clients:
                wire.heal()
                await client.close()
            await self.store.close()
