"""What the server in this process keeps of names that only ever had a record: nothing, when that is over."""

from __future__ import annotations

from dibs.holder import here
from dibs.stores.memory.port.server import MemoryServer


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def wall_us(self) -> int:
        return int((1.7e9 + self.time) * 1e6)


def finished(server: MemoryServer, name: str, keep: float) -> int:
    fence = server.grant_unless_recorded("space", here(1, name, ""), name, 30.0, 0, queue=False)
    assert isinstance(fence, int)
    assert server.finish("space", name, name, fence, b"done", keep) is None
    return fence


def test_a_name_is_forgotten_with_its_record() -> None:
    clock = Clock()
    server = MemoryServer(clock.now, clock.wall_us)
    server.grant("space", here(1, "locked", ""), "t", 30.0, queue=False)
    kept = finished(server, "kept", 10**6)
    for number in range(1000):
        clock.time += 1
        finished(server, f"request {number}", 10)
    assert len(server._records) < 40
    assert server.show("space", "locked").fence > 0
    assert server.show("space", "kept").fence == kept
    assert server.record("space", "kept") is not None


def test_a_name_that_is_held_or_waited_for_is_not() -> None:
    clock = Clock()
    server = MemoryServer(clock.now, clock.wall_us)
    for name in ("held", "waited"):
        finished(server, name, 10)
        server.grant("space", here(1, name, ""), "a", 3000.0, queue=False)
    server.grant("space", here(1, "waited", ""), "b", 30.0, queue=True)
    for number in range(20):
        clock.time += 1
        finished(server, f"request {number}", 5)
    for name in ("held", "waited"):
        assert server.show("space", name).holder is not None
