"""The pair that decides: eight processes read, wait and write under a lock, and holders are stopped past their ttl.

Without a guard updates are lost, and the lock can do nothing about it. With a claim before the read none is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dibs
from dibs.guards import TableGuard
from guards.teller import NAME, connected
from servers.postgres import PostgresServer

PROCESSES, OVERTAKINGS = 8, 2

PATIENCE = 5.0
"""Seconds until a holder that was stopped should have been overtaken; else it may have stopped the store too."""


class Counter:
    """The processes, and how often one was overtaken in the middle."""

    def __init__(self, url: str, folder: Path, data: str, how: str) -> None:
        self._folder, self._client = folder, dibs.connect(url)
        command = [sys.executable, "-W", "error", "-m", "guards.teller", url, str(folder), data, how]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        self._processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(PROCESSES)
        ]

    def overtake_a_holder(self) -> bool:
        """Stop one between its read and its write until two others have had the lock; whether that came about."""
        holder = self._client.show(NAME).holder
        if holder is None or not self._is_between(holder.pid):
            return False
        os.kill(holder.pid, signal.SIGSTOP)
        try:
            return self._is_between(holder.pid) and self._comes_to(holder.fence, 2)
        finally:
            os.kill(holder.pid, signal.SIGCONT)

    def end(self) -> tuple[int, int]:
        """How many writes were accepted, and refused."""
        (self._folder / "enough").touch()
        told = [json.loads(process.communicate(timeout=20)[0]) for process in self._processes]
        return sum(accepted for accepted, _ in told), sum(refused for _, refused in told)

    def clean_up(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._client.close()

    def _is_between(self, pid: int) -> bool:
        return (self._folder / str(pid)).exists()

    def _comes_to(self, fence: int, others: int) -> bool:
        deadline, seen = time.monotonic() + PATIENCE, {fence}
        while len(seen) <= others and time.monotonic() < deadline:
            seen.add(self._client.show(NAME).fence)
            time.sleep(0.002)
        return len(seen) > others


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path, str]]:
    """Where the locks, the files and the data are."""
    signs = tmp_path / "signs"
    signs.mkdir()
    data = str(tmp_path / "data.db")
    url = f"sqlite://{tmp_path}/locks/locks.db"
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = data = server.url
    conn = connected(data)
    if request.param == "sqlite":
        conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("CREATE TABLE account (balance INTEGER)")
    conn.execute("INSERT INTO account VALUES (0)")
    TableGuard().create(conn)
    TableGuard().add(conn, NAME)
    yield url, signs, data
    conn.close()


@pytest.mark.parametrize("how", ["add", "add_guarded"], ids=["lock alone", "lock and guard"])
def test_who_is_stopped_in_the_middle_loses_an_update_unless_there_is_a_guard(
    places: tuple[str, Path, str], how: str
) -> None:
    counter, overtaken = Counter(*places, how), 0
    try:
        deadline = time.monotonic() + 40
        while overtaken < OVERTAKINGS:
            assert time.monotonic() < deadline, "nobody was overtaken in the middle"
            overtaken += counter.overtake_a_holder()
        accepted, refused = counter.end()
    finally:
        counter.clean_up()
    conn = connected(places[2])
    [balance] = conn.execute("SELECT balance FROM account").fetchone()
    conn.close()
    if how == "add":
        assert balance < accepted
    else:
        assert balance == accepted
        assert refused >= OVERTAKINGS
