"""The examples are programs, and do what their first lines say: in real processes, several at once."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from servers.process import until
from servers.redis import RedisServer

EXAMPLES = Path(__file__).parent.parent / "examples"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program among the examples, with locks of this test's own."""
    running: list[subprocess.Popen[str]] = []
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": programs, "DIBS_URL": f"sqlite:///{tmp_path}/locks.db"}

    def start_it(*command: str, **more: str) -> subprocess.Popen[str]:
        running.append(
            subprocess.Popen(
                command, cwd=EXAMPLES, env={**env, **more}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
        return running[-1]

    yield start_it
    for process in running:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    output = process.communicate(timeout=30)[0]
    assert process.returncode == code, output
    return output


def released(folder: Path, *versions: str) -> dict[str, str]:
    """Folders to deploy from and into."""
    for version in versions:
        (folder / version).mkdir()
        (folder / version / "version").write_text(version, encoding="utf-8")
    return {"RELEASES": str(folder)}


def test_deployments_come_one_after_the_other(start: Start, tmp_path: Path) -> None:
    more = released(tmp_path, "1", "2", "3")
    deployments = [start("./deploy.sh", version, **more) for version in "123"]
    lines = [ended(deployment).splitlines()[-1] for deployment in deployments]
    fences = {int(line.split()[-1]): line.split()[1] for line in lines}
    assert (tmp_path / "live" / "version").read_text(encoding="utf-8") == fences[max(fences)]


def test_a_deployment_that_fails_leaves_the_lock_free_and_what_is_live(start: Start, tmp_path: Path) -> None:
    more = released(tmp_path, "1", "2", "3")
    ended(start("./deploy.sh", "1", **more))
    ended(start("./deploy.sh", "2", **more, SMOKE_TEST="exit 3"), code=3)
    assert (tmp_path / "live" / "version").read_text(encoding="utf-8") == "1"
    ended(start("sh", "deploy.sh", "3", **more))
    assert (tmp_path / "live" / "version").read_text(encoding="utf-8") == "3"
    assert "deploy" not in ended(start("dibs", "ls"))


def test_replicas_that_start_together_migrate_once(start: Start, tmp_path: Path) -> None:
    database = tmp_path / "app.db"
    replicas = [start("./entrypoint.sh", str(database), "echo", "serving") for _ in range(4)]
    found = sorted(ended(replica) for replica in replicas)
    assert [text.splitlines()[-2:] for text in found] == [["0 statements", "serving"]] * 3 + [
        ["2 statements", "serving"]
    ]
    with closing(sqlite3.connect(database)) as opened:
        assert opened.execute("SELECT currency FROM invoice").fetchall() == []


def test_an_invoice_is_charged_once_however_many_ask(start: Start, tmp_path: Path) -> None:
    shop = tmp_path / "shop" / "shop.db"
    calls = [(number, start(sys.executable, "invoice.py", str(shop), str(number))) for number in (1, 2) * 3]
    receipts = {(number, ended(call)) for number, call in calls}
    assert len(receipts) == 2
    assert sorted(receipt for _, receipt in receipts) == ["receipt 1\n", "receipt 2\n"]
    with closing(sqlite3.connect(shop)) as opened:
        charged = opened.execute("SELECT invoice FROM charge").fetchall()
    assert sorted(charged) == [(1,), (2,)]


def test_of_many_who_miss_the_cache_one_makes_the_value(start: Start, tmp_path: Path) -> None:
    readers = [start(sys.executable, "cache.py", str(tmp_path / "report")) for _ in range(8)]
    outputs = [ended(reader) for reader in readers]
    assert all(output.endswith("the report\n") for output in outputs)
    assert sum("making it" in output for output in outputs) == 1


def test_the_cache_works_without_a_lock(start: Start, tmp_path: Path) -> None:
    reader = start(sys.executable, "cache.py", str(tmp_path / "report"), DIBS_URL="redis://127.0.0.1:1/0")
    assert ended(reader) == "making it\nthe report\n"


def test_a_celery_task_runs_once_at_a_time(start: Start, tmp_path: Path, redis_server: RedisServer) -> None:
    journal = tmp_path / "journal"
    more = {
        "BROKER_URL": f"redis://127.0.0.1:{redis_server.port}/1",
        "DIBS_URL": f"redis://127.0.0.1:{redis_server.port}/0",
        "JOURNAL": str(journal),
    }
    send = "import celery_tasks; [celery_tasks.sync.delay(account) for account in 'aaab']"
    ended(start(sys.executable, "-c", send, **more))
    start(
        sys.executable,
        "-m",
        "celery",
        "-A",
        "celery_tasks",
        "worker",
        "--concurrency",
        "4",
        "--loglevel",
        "ERROR",
        **more,
    )
    until(lambda: journal.exists() and journal.read_text(encoding="utf-8").count("end") == 4, "all have run")
    lines = [line.split() for line in journal.read_text(encoding="utf-8").splitlines()]
    for account, calls in (("a", 3), ("b", 1)):
        events = [(what, int(fence)) for what, name, fence in lines if name == account]
        fences = [fence for what, fence in events if what == "begin"]
        assert events == [(what, fence) for fence in fences for what in ("begin", "end")]
        assert sorted(set(fences)) == fences
        assert len(fences) == calls


def test_one_scheduler_leads_and_the_next_takes_over_at_once(start: Start, tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    first = start(sys.executable, "scheduler.py", str(database))
    assert first.stdout is not None
    assert "leads, term" in first.stdout.readline()
    second = start(sys.executable, "scheduler.py", str(database))
    first.terminate()
    ended(first)
    assert second.stdout is not None
    assert "leads, term" in second.stdout.readline()
    second.terminate()
    ended(second)
    rounds = sqlite3.connect(database)
    jobs = rounds.execute("SELECT round, term FROM job ORDER BY rowid").fetchall()
    rounds.close()
    assert jobs == sorted(jobs)
    assert [number for number, _ in jobs] == list(range(1, len(jobs) + 1))


def test_a_nightly_job_is_done_by_one_of_five_replicas(start: Start, tmp_path: Path) -> None:
    """At midnight it is done for the next day, too."""
    path = tmp_path / "report"
    replicas = [start(sys.executable, "nightly.py", str(path)) for _ in range(5)]
    said = [ended(replica) for replica in replicas]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert 1 <= len(lines) <= 2
    assert len(set(lines)) == len(lines)
    assert sum("already ran" in line for line in said) == 5 - len(lines)
