"""What happens to a Consul server at random, beside what happens to its clients: it dies, and it stands still."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from servers.consul import ConsulServer

from .server_nemesis import STANDSTILL, ServerNemesis


class ConsulNemesis(ServerNemesis):
    """Does it; but kills only if it is *deadly*: a server that starts again takes seconds to elect itself."""

    ASKS = b"/v1/txn"

    def __init__(self, server: ConsulServer, folder: Path, ttl: float, size: int, *, deadly: bool) -> None:
        self._deadly = deadly
        super().__init__(server.address, folder, ttl, size)
        self._server = server

    def url(self, address: tuple[str, int] | None) -> str:
        """The server's, or the proxy's."""
        return self._server.url_at(address)

    def harms_to_the_server(self) -> list[tuple[Callable[[], None], int]]:
        """It stands still more often than it dies."""
        deaths = [(self._kill_the_server, 1), (self._restart_the_server, 1)] if self._deadly else []
        return [(self._stop_the_server, 4), *deaths]

    def _stop_the_server(self) -> None:
        self._server.stop()
        time.sleep(random.uniform(*STANDSTILL))
        self._server.cont()
        self.done["server stopped for a moment"] += 1

    def _kill_the_server(self) -> None:
        self._server.kill9()
        self._server.start()
        self.done["server killed"] += 1

    def _restart_the_server(self) -> None:
        self._server.process.signal(signal.SIGTERM)
        self._server.process.ended()
        self._server.start()
        self.done["server restarted"] += 1
