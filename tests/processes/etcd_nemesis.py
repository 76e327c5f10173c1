"""What happens to an etcd server at random, beside what happens to its clients: it dies, and its past is compacted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from servers.etcd import EtcdError, EtcdServer

from .server_nemesis import STANDSTILL, ServerNemesis


class EtcdNemesis(ServerNemesis):
    """Does it."""

    ASKS = b"kv/"

    def __init__(self, server: EtcdServer, folder: Path, ttl: float, size: int) -> None:
        super().__init__(server.address, folder, ttl, size)
        self._server = server

    def url(self, address: tuple[str, int] | None) -> str:
        """The server's, or the proxy's."""
        return f"etcd://{address[0]}:{address[1]}" if address else self._server.url

    def harms_to_the_server(self) -> list[tuple[Callable[[], None], int]]:
        """Both are rare."""
        return [(self._compact, 2), (self._kill_the_server, 1)]

    def _compact(self) -> None:
        now = self._server.call("kv/range", key="x")["header"]["revision"]
        with suppress(EtcdError):  # it may have been compacted up to there
            self._server.call("kv/compaction", revision=now)
            self.done["history compacted"] += 1

    def _kill_the_server(self) -> None:
        self._server.kill9()
        time.sleep(random.uniform(*STANDSTILL))
        self._server.start()
        self.done["server killed"] += 1
