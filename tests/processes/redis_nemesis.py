"""What happens to a Redis server at random, beside what happens to its clients: restarts, forgotten scripts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from servers.redis import RedisServer

from .server_nemesis import STANDSTILL, ServerNemesis


class RedisNemesis(ServerNemesis):
    """Does it."""

    ASKS = b"EVAL"

    def __init__(self, server: RedisServer, folder: Path, ttl: float, size: int) -> None:
        super().__init__(server.address, folder, ttl, size)
        self._server = server

    def url(self, address: tuple[str, int] | None) -> str:
        """The server's, or the proxy's."""
        return f"redis://{address[0]}:{address[1]}/0" if address else self._server.url

    def harms_to_the_server(self) -> list[tuple[Callable[[], None], int]]:
        """Most often it forgets its scripts."""
        return [
            (self._forget_scripts, 6),
            (self._kill_clients, 4),
            (self._kill_the_server, 1),
            (self._restart_the_server, 1),
        ]

    def _forget_scripts(self) -> None:
        self._server.command("SCRIPT", "FLUSH", "SYNC")
        self.done["scripts forgotten"] += 1

    def _kill_clients(self) -> None:
        kind = random.choice(["normal", "pubsub"])
        self.done[f"{kind} connection killed"] += self._server.command("CLIENT", "KILL", "TYPE", kind)

    def _kill_the_server(self) -> None:
        self._server.kill9()
        time.sleep(random.uniform(*STANDSTILL))
        self._server.start()
        self.done["server killed"] += 1

    def _restart_the_server(self) -> None:
        self._server.restart(keep_data=True)
        self.done["server restarted"] += 1
