"""What happens to a ZooKeeper server at random, beside what happens to its clients: it dies, and it stands still."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from servers.zookeeper import ZooKeeperServer

from .server_nemesis import STANDSTILL, ServerNemesis


class ZooKeeperNemesis(ServerNemesis):
    """Does it."""

    ASKS = b"/dibs/default/"

    def __init__(self, server: ZooKeeperServer, folder: Path, ttl: float, size: int) -> None:
        super().__init__(server.address, folder, ttl, size)
        self._server = server

    def url(self, address: tuple[str, int] | None) -> str:
        """The server's, or the proxy's."""
        return f"zookeeper://{address[0]}:{address[1]}" if address else self._server.url

    def harms_to_the_server(self) -> list[tuple[Callable[[], None], int]]:
        """Both are rare."""
        return [(self._stop_the_server, 2), (self._kill_the_server, 1)]

    def _stop_the_server(self) -> None:
        self._server.stop()
        time.sleep(random.uniform(*STANDSTILL))
        self._server.cont()
        self.done["server stopped for a moment"] += 1

    def _kill_the_server(self) -> None:
        self._server.kill9()
        self._server.start()
        self.done["server killed"] += 1
