"""Free ports that stay ours while no server listens, so that a server can be restarted on its port."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 32_000)  # below those that the kernel gives to outgoing connections


class Port:
    """A loopback port that no other test run on this machine takes until it is given back."""

    def __init__(self) -> None:
        self._reserving = socket.socket()
        self.number = self._bind()
        # Only from now on: a server, which sets this too, may bind the same port, but a second reservation may not.
        self._reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def give_back(self) -> None:
        """Let others have it."""
        self._reserving.close()

    def _bind(self) -> int:
        for number in random.Random().sample(PORTS, 100):  # not the shared generator, which tests seed
            try:
                self._reserving.bind(("127.0.0.1", number))
            except OSError:
                continue
            return number
        raise RuntimeError("100 ports in a row are taken")
