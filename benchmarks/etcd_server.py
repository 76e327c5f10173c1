"""An etcd server for one question, alone in its cluster."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import server
from server import HOST, Server, free_port


def program() -> str | None:
    """Where it is."""
    return server.program("etcd")


class EtcdServer(Server):
    """Elects itself at once."""

    def command(self, folder: Path) -> list[str]:
        """One port for clients, and one for peers that never come."""
        here, peer = f"http://{HOST}:{self.port}", f"http://{HOST}:{free_port()}"
        command = [program() or "etcd", "--data-dir", f"{folder}/data", "--initial-cluster", f"bench={peer}"]
        command += ["--name", "bench", "--listen-client-urls", here, "--advertise-client-urls", here]
        return [*command, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]

    def answers(self) -> bool:
        """Whether it has a leader: itself."""
        with urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=1) as answer:
            return b"true" in answer.read()

    @property
    def url(self) -> str:
        """How dibs reaches it."""
        return f"etcd://{HOST}:{self.port}"
