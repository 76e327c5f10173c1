"""The proxy itself: where it listens, which faults are set, and the loop in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any, Self, TypeVar

from dibs.testing.proxy import faults as kinds
from dibs.testing.proxy.connection import Address, Connection, owned
from dibs.testing.proxy.faults import Direction, End, Fault, Match

T = TypeVar("T")
F = TypeVar("F", bound=Fault)

PATIENCE = 10.0
"""Seconds after which the loop is stuck, which is a bug."""


class FaultProxy:
    """Forwards connections to *server*, a host and port or the path of a unix socket, and breaks them on demand.

        with FaultProxy(("127.0.0.1", 6379)) as proxy:
            client = dibs.connect(f"redis://127.0.0.1:{proxy.port}")
            fault = proxy.drop_reply(to=b"EVALSHA")  # the server grants, the client does not hear of it
            with client.lock("invoice:42", ttl=5) as lease:
                assert fault.count == 1

    Its loop runs in a thread, so blocking and async tests use it in the same way. What a method sets holds for all
    bytes that arrive after it has returned. Each fault it returns counts, can be waited for and lifted, so that a test
    needs no sleep.
    """

    host = "127.0.0.1"
    port: int
    """Where it listens; the same for its whole life."""
    accepted: int
    """How many connections there were so far. While the server is down they are accepted, and then reset."""

    def __init__(self, server: Address) -> None:
        self._server, self.accepted = server, 0
        self._faults: list[Fault] = []
        self._connections: set[Connection] = set()
        self._listening: asyncio.Task[None] | None = None
        self._failures: list[BaseException] = []

    def __enter__(self) -> Self:
        self._reserved = self._socket(0)  # keeps the port ours while nobody listens
        self.port = self._reserved.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._thread.start()
        self._in_loop(self._listen())
        return self

    def __exit__(self, *exc: object) -> None:
        self._in_loop(self._refuse())
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._reserved.close()
        if self._failures:
            raise self._failures[0]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as `socket.create_connection` takes them."""
        return self.host, self.port

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def drop_reply(
        self, to: Match | None = None, *, nth: int = 1, times: int | None = 1, end: End | None = "fin"
    ) -> Fault:
        """Lose what the server answers to the *nth* request that matches *to*, and to those after it up to *times*.

        The server has done what was asked. The connection is closed then, or with ``end=None`` goes on as if nothing
        had been. A reply is all that the server sends until the client's next request, so to requests that are sent
        without waiting for answers (pipelines, shared connections) tell ``drop("replies", …)`` which bytes you mean.
        """
        return self._set(kinds.DropReply("requests", to, nth, times, end))

    def drop(
        self,
        direction: Direction,
        match: Match | None = None,
        *,
        nth: int = 1,
        times: int | None = 1,
        end: End | None = "fin",
    ) -> Fault:
        """Lose what matches, such as a request that the server shall never see, or one message that it pushes."""
        return self._set(kinds.Drop(direction, match, nth, times, end))

    def delay(self, *, requests: float = 0.0, replies: float = 0.0) -> Fault:
        """Let bytes travel so many seconds longer."""
        return self._set(kinds.Delay(requests, replies))

    def black_hole(self, direction: Direction) -> Fault:
        """Accept connections and bytes, and pass none on in this direction. When it is lifted they arrive after all."""
        return self._set(kinds.BlackHole(direction))

    def hold(self, direction: Direction, match: Match | None = None, *, nth: int = 1, times: int | None = 1) -> Fault:
        """Keep what matches on the way until it is lifted, also if the client closes that connection meanwhile.

        Other connections go on, so what is sent later overtakes it: as where a kernel sends again what was lost.
        """
        return self._set(kinds.HoldBack(direction, match, nth, times))

    def split(
        self,
        direction: Direction,
        at: int,
        match: Match | None = None,
        *,
        nth: int = 1,
        times: int | None = 1,
        end: End | None = None,
    ) -> Fault:
        """Pass on the first *at* bytes of what matches. The rest comes when the fault is lifted; with *end*, never."""
        return self._set(kinds.Split(direction, at, match, nth, times, end))

    def refuse(self) -> Fault:
        """Refuse new connections, as a host does where nothing listens. Those that are open stay."""
        fault = self._set(kinds.Refusal())
        self._in_loop(self._refuse())
        return fault

    def cut(self, end: End = "fin") -> int:
        """End all connections now, in both directions; return how many there were."""
        return self._in_loop(self._cut(end))

    def heal(self) -> None:
        """Lift all faults."""
        for fault in list(self._faults):
            fault.lift()

    def _set(self, fault: F) -> F:
        async def add() -> None:
            self._faults.append(fault.set_by(self._lift))

        self._in_loop(add())
        return fault

    def _lift(self, fault: Fault) -> None:
        async def remove() -> None:
            if fault in self._faults:
                self._faults.remove(fault)
                fault.end()
            if self._listening is None and not any(isinstance(each, kinds.Refusal) for each in self._faults):
                await self._listen()

        if not self._loop.is_closed():
            self._in_loop(remove())

    async def _listen(self) -> None:
        listener = self._socket(self.port)
        listener.listen(1024)
        self._listening = asyncio.create_task(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        try:
            while True:
                client, _ = await asyncio.get_running_loop().sock_accept(listener)
                self.accepted += 1
                connection = Connection(client, self._server, self._faults)
                self._connections.add(connection)
                connection.task.add_done_callback(partial(self._ended, connection))
        finally:
            listener.close()

    def _ended(self, connection: Connection, task: asyncio.Task[None]) -> None:
        self._connections.discard(connection)
        if not task.cancelled() and (failure := task.exception()):
            self._failures.append(failure)  # such as an error in a test's own match

    async def _refuse(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._listening = None

    async def _cut(self, end: End) -> int:
        connections = list(self._connections)
        await asyncio.gather(*(connection.cut(end) for connection in connections))
        return len(connections)

    def _socket(self, port: int) -> socket.socket:
        sock = owned(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the listener and the one that keeps the port
        sock.bind((self.host, port))
        return sock

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Do *work* where all state lives; what it sets is in force when this returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)
