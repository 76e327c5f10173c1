"""A Consul server for one question, on free ports: it writes to disk as a server should."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Self

PATIENCE = 20.0

HOST = "127.0.0.1"

UNPACKED = Path(__file__).parent.parent / ".servers/consul/usr/bin"


def program() -> str | None:
    """Where it is."""
    return shutil.which("consul") or shutil.which("consul", path=UNPACKED)


class ConsulServer:
    """Runs until the end of the ``with`` block."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="dibs-bench-", ignore_cleanup_errors=True)
        self.port, rpc, serf = (_free_port() for _ in range(3))
        ports = {"http": self.port, "server": rpc, "serf_lan": serf, "serf_wan": -1, "dns": -1, "grpc": -1}
        settings = {"ports": ports, "bootstrap_expect": 1, "disable_update_check": True, "bind_addr": HOST}
        settings |= {"performance": {"raft_multiplier": 1}, "node_name": "bench"}
        config = Path(self._folder.name) / "config.json"
        config.write_text(json.dumps(settings), encoding="utf-8")
        command = [program() or "consul", "agent", "-server", "-config-file", str(config)]
        command += ["-data-dir", f"{self._folder.name}/data"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._until_it_answers()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        self._folder.cleanup()

    @property
    def url(self) -> str:
        """How dibs reaches it."""
        return f"consul://{HOST}:{self.port}"

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        where = f"http://{HOST}:{self.port}/v1/kv/ready"
        while True:
            try:
                with urllib.request.urlopen(urllib.request.Request(where, b"yes", method="PUT"), timeout=1):
                    return
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])
