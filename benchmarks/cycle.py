"""What does it cost to take a free lock and give it back?"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import dibs.aio
from locks import (
    BARE,
    BARE_FULL,
    DIBS,
    FASTENERS,
    FILELOCK,
    FLOCK,
    MITHRIL,
    PORTALOCKER,
    Bare,
    missing,
    opened,
)
from page import Aim, Answer, micros, table, times
from rounds import Scale, interleaved, median, ratio
from uncontended import block

AIM = 2.0

Block = Callable[[], list[float]]

BLOCKING = [BARE, DIBS, BARE_FULL, FLOCK, PORTALOCKER, FILELOCK, FASTENERS, MITHRIL]


def measure(folder: Path, scale: Scale) -> Answer:
    """Blocking and async, all in the same rounds."""
    with contextlib.ExitStack() as stack:
        guards = {kind: stack.enter_context(opened(kind, folder, "x")) for kind in BLOCKING if kind not in missing()}
        runner = stack.enter_context(asyncio.Runner())
        clients = stack.enter_context(_in_loop(runner, folder))
        blocks: dict[str, Block] = {kind: block(guard, scale.seconds) for kind, guard in guards.items()}
        blocks |= {kind: _async(runner, lock, scale.seconds) for kind, lock in clients.items()}
        for first in blocks.values():
            first()
        gc.freeze()  # what the libraries are made of is not looked through again for each of the others
        found = interleaved(blocks, scale.rounds)
    return _answer(found)


AsyncGuard = Callable[[], contextlib.AbstractAsyncContextManager[object]]


def _async(runner: asyncio.Runner, guard: AsyncGuard, seconds: float) -> Block:
    async def block() -> list[float]:
        now, took = asyncio.get_running_loop().time, []
        until = now() + seconds
        while (began := now()) < until:
            async with guard():
                pass
            took.append(now() - began)
        return took

    return lambda: runner.run(block())


DIBS_ASYNC = "dibs, `async with`"
THREADED = "bare statements, NORMAL, in `asyncio.to_thread`"
FILELOCK_ASYNC = "filelock, `async with`"


@contextlib.contextmanager
def _in_loop(runner: asyncio.Runner, folder: Path) -> Iterator[Mapping[str, AsyncGuard]]:
    """The async contenders, by name."""
    client = dibs.aio.connect(f"sqlite://{folder}/dibs-async.db")
    lock, bare = client.lock("x"), Bare(folder / "bare-async.db", "x", "NORMAL")
    found: dict[str, AsyncGuard] = {DIBS_ASYNC: lambda: lock, THREADED: lambda: _InThread(bare)}
    if FILELOCK not in missing():
        other = importlib.import_module("filelock").AsyncFileLock(folder / "async.filelock")
        found[FILELOCK_ASYNC] = lambda: other
    yield found
    runner.run(client.close())
    bare.close()


class _InThread:
    """What one writes by hand so that SQLite does not hold up the event loop."""

    def __init__(self, lock: Bare) -> None:
        self._lock = lock

    async def __aenter__(self) -> None:
        await asyncio.to_thread(self._lock.__enter__)

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._lock.__exit__)


def _answer(found: Mapping[str, list[list[float]]]) -> Answer:
    middle = {name: [median(took) for took in blocks] for name, blocks in found.items()}
    mean = {name: [sum(took) / len(took) for took in blocks] for name, blocks in found.items()}
    ratios = {name: ratio(middle[name], middle[BARE]) for name in found}
    mean_ratio = {name: ratio(mean[name], mean[BARE]) for name in found}
    rows = [
        [name, times(ratios[name]), micros(median(middle[name])), times(mean_ratio[name]), micros(median(mean[name]))]
        for name in sorted(found, key=lambda name: ratios[name])
    ]
    head = ["acquire + release, nobody else wants it", "median ratio", "median, µs", "mean ratio", "mean, µs"]
    aim = Aim(
        "acquire + release on SQLite, over the bare statements",
        f"≤ {AIM:g}×",
        f"{times(ratios[DIBS])} (mean {times(mean_ratio[DIBS])})",
        ratios[DIBS] <= AIM,
    )
    return Answer([table(head, rows)], [aim])
