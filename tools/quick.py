"""What `make quick` runs: in a minute, what is most likely to fail after the changes that are not committed yet.

    python tools/quick.py          the changes since HEAD
    python tools/quick.py main     all that came since main

Always: the core, the contract of every store that can be simulated, and 6,000 histories. Then the tests that mirror
the changed files by name, and the contract of each store whose files changed, in one runtime.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"

ALWAYS = ("tests/core", "tests/simulation", "tests/contract", "tests/runtime", "tests/test_imports.py")
LONG = (
    "tests/simulation/test_redlock_model.py",
    "tests/core/test_closing.py",
    "tests/core/test_closing_traces.py",
    "tests/core/test_keeper_hanging.py",
    "tests/runtime/test_lifetime_unseen.py",
)
"""What takes too long to run always: a model that is checked exhaustively, and what needs the servers of all stores.
Each is run when a file changes that it mirrors."""

CONTRACTS = {
    "sqlite": "contract/test_stores.py::TestSqlite",
    "memory": "contract/test_stores.py::TestMemory",
    "redis": "stores/redis/test_store.py::TestContract",
    "redlock": "stores/redlock/test_store_contract.py",
    "rows": "stores/postgres/rows/test_store.py::TestContract",
    "advisory": "stores/postgres/advisory/test_store.py::TestContract",
    "zookeeper": "stores/zookeeper/test_store.py::TestContract",
    "etcd": "stores/etcd/test_store.py::TestContract",
    "consul": "stores/consul/test_store.py::TestContract",
}
"""A folder of a source file, and the contract of the store that it belongs to."""

SHARED = {"postgres": ("rows", "advisory"), "http": ("etcd", "consul")}
"""Folders that several stores stand on. What is in `redis` serves `redlock` too, but costs a minute more."""


def changed(since: str) -> list[Path]:
    """The files that differ from *since*, and those that git does not track yet."""
    lists = (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"])
    return [Path(line) for arguments in lists for line in git(*arguments).splitlines()]


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def mirrored(source: Path) -> Iterator[Path]:
    """The tests of *source*, in the same folder below tests/: those whose name begins with its name."""
    folder, stem = TESTS / source.relative_to("src/dibs").parent, source.stem.strip("_")
    yield from folder.glob(f"test_{stem}.py")
    yield from folder.glob(f"test_{stem}_*.py")
    while folder != TESTS:
        yield from folder.parent.glob(f"test_{folder.name.strip('_')}.py")
        yield from folder.parent.glob(f"test_{folder.name.strip('_')}_*.py")
        folder = folder.parent


def contracts(source: Path) -> list[str]:
    """The contracts of the stores that *source* belongs to."""
    folders = set(source.parts)
    if not folders & CONTRACTS.keys():
        folders.update(*(SHARED[folder] for folder in folders & SHARED.keys()))
    return [f"tests/{test}" for folder, test in CONTRACTS.items() if folder in folders]


def chosen(files: Iterable[Path]) -> list[str]:
    """What to give to pytest for these changes."""
    tests = dict.fromkeys(ALWAYS)
    for file in files:
        if file.suffix != ".py":
            continue
        if file.name.startswith("test_") and (ROOT / file).exists():
            tests[file.as_posix()] = None
        elif file.parts[0] == "src":
            tests.update(dict.fromkeys(test.relative_to(ROOT).as_posix() for test in mirrored(file)))
            tests.update(dict.fromkeys(contracts(file)))
    return list(tests)


def main() -> int:
    """Run them."""
    files = changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD")
    tests = chosen(files)
    print(f"{len(files)} changed files; besides the core and the simulations:", *tests[len(ALWAYS) :] or ["nothing"])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "4", "--dist", "worksteal", "--one-runtime", *tests]
    command += [f"--ignore={test}" for test in LONG if test not in tests]
    return subprocess.run(command, cwd=ROOT, env={"DIBS_SIM_SEEDS": "6000", **os.environ}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
