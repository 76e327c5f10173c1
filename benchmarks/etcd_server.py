"""An etcd server for one question, on free ports: it writes to disk as a server should."""

from __future__ import annotations

import os
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

UNPACKED = Path(__file__).parent.parent / ".servers/etcd/usr/bin"


def program() -> str | None:
    """Where it is."""
    return shutil.which("etcd") or shutil.which("etcd", path=UNPACKED)


class EtcdServer:
    """Runs until the end of the ``with`` block."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="dibs-bench-", ignore_cleanup_errors=True)
        self.port, peer = _free_port(), f"http://{HOST}:{_free_port()}"
        here = f"http://{HOST}:{self.port}"
        command = [program() or "etcd", "--data-dir", f"{self._folder.name}/data", "--initial-cluster", f"bench={peer}"]
        command += ["--name", "bench", "--listen-client-urls", here, "--advertise-client-urls", here]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._until_it_answers()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        self._folder.cleanup()

    def run_on(self, cores: set[int]) -> None:
        """Let it use only these, and this thread too."""
        for thread in os.listdir(f"/proc/{self._process.pid}/task"):
            os.sched_setaffinity(int(thread), cores)
        os.sched_setaffinity(0, cores)

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=1) as answer:
                    if b"true" in answer.read():
                        return
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])
