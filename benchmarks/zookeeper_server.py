"""A ZooKeeper server for one question, on a free port: it writes to disk as a server should."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

PATIENCE = 30.0

HOST = "127.0.0.1"

UNPACKED = Path(__file__).parent.parent / ".servers" / "zookeeper"

HOMES = [Path("/usr/share/java"), UNPACKED / "usr/share/java"]


def is_there() -> bool:
    """Whether there is a server, and Java to run it."""
    return shutil.which("java") is not None and _jars() is not None


class ZooKeeperServer:
    """Runs until the end of the ``with`` block."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="dibs-bench-", ignore_cleanup_errors=True)
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port: int = free.getsockname()[1]
        config = Path(self._folder.name) / "zoo.cfg"
        lines = [
            "tickTime=2000",
            f"dataDir={self._folder.name}",
            f"clientPort={self.port}",
            f"clientPortAddress={HOST}",
        ]
        config.write_text("\n".join([*lines, "maxClientCnxns=0", "4lw.commands.whitelist=*"]), encoding="utf-8")
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-Dzookeeper.admin.enableServer=false", "-cp", _jars() or ""]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._until_it_answers()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)
        self._folder.cleanup()

    @property
    def url(self) -> str:
        """How it is reached."""
        return f"zookeeper://{HOST}:{self.port}"

    def run_on(self, cores: set[int]) -> None:
        """Let it use only these, and this process too."""
        for pid in self._process.pid, os.getpid():
            subprocess.run(["taskset", "-apc", ",".join(map(str, cores)), str(pid)], check=True, capture_output=True)

    def received(self) -> int:
        """How many requests it has got so far."""
        found = re.search(r"^zk_packets_received\t(\d+)", self._says("mntr"), re.MULTILINE)
        return int(found[1]) if found else 0

    def _says(self, word: str) -> str:
        with socket.create_connection((HOST, self.port), timeout=1) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if "Mode:" in self._says("srvr"):
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError("ZooKeeper does not answer")
            time.sleep(0.02)


def _jars() -> str | None:
    for home in HOMES:
        if (home / "zookeeper.jar").exists():
            wanted = "zookeeper* slf4j-* log4j-1.2* netty* commons-* metrics-core* snappy* jackson-*"
            return ":".join(str(jar) for pattern in wanted.split() for jar in home.glob(f"{pattern}.jar"))
    return None
