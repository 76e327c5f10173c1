"""A Consul server for one question, alone in its cluster."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import server
from server import HOST, Server, free_port


def program() -> str | None:
    """Where it is."""
    return server.program("consul")


class ConsulServer(Server):
    """Elects itself at once."""

    def command(self, folder: Path) -> list[str]:
        """With the least of ports."""
        ports = {"http": self.port, "server": free_port(), "serf_lan": free_port()}
        ports |= {"serf_wan": -1, "dns": -1, "grpc": -1}
        settings = {"ports": ports, "bootstrap_expect": 1, "disable_update_check": True, "bind_addr": HOST}
        settings |= {"performance": {"raft_multiplier": 1}, "node_name": "bench"}
        config = folder / "config.json"
        config.write_text(json.dumps(settings), encoding="utf-8")
        return [program() or "consul", "agent", "-server", "-config-file", str(config), "-data-dir", f"{folder}/data"]

    def answers(self) -> bool:
        """Whether it can write."""
        where = f"http://{HOST}:{self.port}/v1/kv/ready"
        with urllib.request.urlopen(urllib.request.Request(where, b"yes", method="PUT"), timeout=1):
            return True

    @property
    def url(self) -> str:
        """How dibs reaches it."""
        return f"consul://{HOST}:{self.port}"
