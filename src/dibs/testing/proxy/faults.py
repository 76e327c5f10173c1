"""What can go wrong with the bytes between a client and a server: each kind of fault says what it does to them.

A fault sees what one read brought, in one direction. On loopback that is one write of the other side: for a client
that waits for its answers one request, or one reply. It knows no protocol, and never doubles or reorders bytes, since
TCP does not.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Literal, Protocol, Self

Direction = Literal["requests", "replies"]
"""What the client sends, or what the server sends."""

End = Literal["fin", "rst"]
"""How a connection ends: orderly, as when a process exits, or by a reset, as when the peer forgot it."""

Match = bytes | Callable[[bytes], bool]
"""Which bytes are meant: those that contain these, or those for which the function is true."""


class CutError(Exception):
    """Ends the connection it is raised in; never leaves the proxy."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end: End = end


class FlowOfBytes(Protocol):
    """One direction of a connection, as a fault sees it."""

    @property
    def connection(self) -> object:
        """The connection: the same object for both directions."""

    @property
    def direction(self) -> Direction:
        """Which way the bytes go."""

    async def send(self, data: bytes) -> None:
        """Write *data* to the other side."""


class Fault:
    """Something that goes wrong until it is lifted; counts how often it has.

    As a context manager it is lifted at the end of the block.
    """

    def __init__(self) -> None:
        self.count = 0
        """How often it happened."""
        self._happened = threading.Condition()
        self._over = asyncio.Event()  # set in the loop of the proxy only
        self._take_back: Callable[[Fault], None] | None = None

    def wait(self, times: int = 1, timeout: float = 10.0) -> None:
        """Return when it has happened so many *times*; `TimeoutError` if it does not.

        It blocks: async code says ``await asyncio.to_thread(fault.wait)``.
        """
        with self._happened:
            if not self._happened.wait_for(lambda: self.count >= times, timeout):
                raise TimeoutError(f"{self!r} within {timeout:g} s, not {times} times")

    def lift(self) -> None:
        """Stop it; bytes that it held back go on. Lifting twice is fine."""
        if self._take_back is not None:
            self._take_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.lift()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: happened {self.count} times>"

    # What follows is called by the proxy, in its loop.

    def set_by(self, take_back: Callable[[Fault], None]) -> Self:
        """Remember how it is lifted."""
        self._take_back = take_back
        return self

    def end(self) -> None:
        """It is lifted."""
        self._over.set()

    @property
    def over(self) -> bool:
        """Whether it is lifted."""
        return self._over.is_set()

    def delay(self, direction: Direction) -> float:
        """Seconds that bytes take longer."""
        return 0.0

    async def act(self, flow: FlowOfBytes, data: bytes) -> bytes | None:
        """What is left of *data*: nothing, a part, all. It is empty when that side has said all."""
        return data

    def _note(self) -> None:
        with self._happened:
            self.count += 1
            self._happened.notify_all()


class Refusal(Fault):
    """New connections are refused; nobody counts them, since the kernel does it."""


class Delay(Fault):
    """Bytes arrive later, in order, as over a long wire."""

    def __init__(self, requests: float, replies: float) -> None:
        super().__init__()
        self._seconds: dict[Direction, float] = {"requests": requests, "replies": replies}

    def delay(self, direction: Direction) -> float:
        """Seconds that bytes take longer."""
        if seconds := self._seconds[direction]:
            self._note()
        return seconds


class BlackHole(Fault):
    """Bytes of one direction do not arrive, and the end of the stream neither, until it is lifted."""

    def __init__(self, direction: Direction) -> None:
        super().__init__()
        self._direction = direction

    async def act(self, flow: FlowOfBytes, data: bytes) -> bytes:
        """Hold the bytes: TCP loses none while a connection lives, so after the healing they arrive, late."""
        if flow.direction == self._direction:
            self._note()
            await self._over.wait()
        return data


class Chosen(Fault):
    """A fault of some reads: from the *nth* on that matches, so many *times* (None: all)."""

    def __init__(self, direction: Direction, match: Match | None, nth: int, times: int | None) -> None:
        super().__init__()
        self._direction, self._match, self._nth, self._times, self._seen = direction, match, nth, times, 0

    def _meets(self, flow: FlowOfBytes, data: bytes) -> bool:
        if not data or flow.direction != self._direction or not self._matches(data):
            return False
        self._seen += 1
        return self._nth <= self._seen and (self._times is None or self._seen < self._nth + self._times)

    def _matches(self, data: bytes) -> bool:
        match self._match:
            case None:
                return True
            case bytes() as part:
                return part in data
            case predicate:
                return predicate(data)


class Drop(Chosen):
    """Bytes are lost."""

    def __init__(self, direction: Direction, match: Match | None, nth: int, times: int | None, end: End | None) -> None:
        super().__init__(direction, match, nth, times)
        self._end = end

    async def act(self, flow: FlowOfBytes, data: bytes) -> bytes | None:
        """Lose what matches."""
        if not self._meets(flow, data):
            return data
        self._lose()
        return None

    def _lose(self) -> None:
        self._note()
        if self._end is not None:
            raise CutError(self._end)


class HoldBack(Chosen):
    """What matches stays on the way until it is lifted, and so does what follows on the same connection."""

    async def act(self, flow: FlowOfBytes, data: bytes) -> bytes:
        """Hold the bytes."""
        if self._meets(flow, data):
            self._note()
            await self._over.wait()
        return data


class DropReply(Drop):
    """The server does what it is asked, and its answer is lost."""

    def __init__(self, direction: Direction, match: Match | None, nth: int, times: int | None, end: End | None) -> None:
        super().__init__(direction, match, nth, times, end)
        self._losing: weakref.WeakKeyDictionary[object, bool] = weakref.WeakKeyDictionary()
        """Connections whose reply is being lost, and whether that reply has begun."""

    async def act(self, flow: FlowOfBytes, data: bytes) -> bytes | None:
        """Let the request that matches pass, and lose all that the server says until the next request."""
        connection = flow.connection
        if flow.direction == "requests":
            if self._meets(flow, data):
                self._losing[connection] = False
            elif self._losing.get(connection):  # its reply was lost: what comes now answers another request
                del self._losing[connection]
            return data
        if not data or connection not in self._losing:
            return data
        if not self._losing[connection]:
            self._losing[connection] = True
            self._lose()
        return None


class Split(Chosen):
    """The first bytes arrive, the others later or never."""

    def __init__(
        self,
        direction: Direction,
        at: int,
        match: Match | None,
        nth: int,
        times: int | None,
        end: End | None,
    ) -> None:
        super().__init__(direction, match, nth, times)
        self._at, self._end = at, end

    async def act(self, flow: FlowOfBytes, data: bytes) -> bytes:
        """Send the first part, then end, or hold the rest until the fault is lifted."""
        if len(data) <= self._at or not self._meets(flow, data):
            return data
        await flow.send(data[: self._at])
        self._note()
        if self._end is not None:
            raise CutError(self._end)
        await self._over.wait()
        return data[self._at :]
