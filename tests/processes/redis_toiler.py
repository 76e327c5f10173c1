"""A process that counts under locks in Redis, blocking or async, and writes down all it does: see `toiler`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import dibs
import dibs.aio
from dibs.runtime.clock import boot_time

from .tally import Tally
from .toiler import Report

T = TypeVar("T")

NAMES = [f"tally-{number}" for number in range(4)]
"""The locks: fewer than workers, so that most of the time somebody waits for each."""

AT_ONCE, A_WHILE, TOO_LONG = 0.0, 0.01, 0.25
"""Seconds of work: mostly none; enough to be met there by the one who stops and kills; more than a third of the ttl,
so that the keeper renews meanwhile."""


def main() -> None:
    """One increment for each lease, until there is a file that says enough."""
    url, folder, ttl, colour = sys.argv[1:]
    asyncio.run(Toiler(url, Path(folder), float(ttl), colour).toil())


class Toiler:
    """One worker. The blocking client is used in the event loop too: it has nothing else to do."""

    def __init__(self, url: str, folder: Path, ttl: float, colour: str) -> None:
        self._url, self._folder, self._ttl = url, folder, ttl
        self._connect: Any = {"blocking": dibs.connect, "async": dibs.aio.connect}[colour]
        self._report = Report(folder / f"report-{os.getpid()}")
        self._granted = os.open(folder / "granted", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._tallies = {name: Tally(folder / name) for name in NAMES}

    async def toil(self) -> None:
        """Take any of the locks, again and again."""
        before, number = belongings(), 0
        client = self._connect(self._url)
        print("true", flush=True)
        while not (self._folder / "enough").exists():
            number += 1
            name = random.choice(NAMES)
            await self._count_once(name, client.lock(name, ttl=self._ttl, timeout=5), f"{os.getpid()}.{number}")
        busy = belongings()
        await done(client.close())
        self._report(what="ended", before=before, busy=busy, after=await idle(before))

    async def _count_once(self, name: str, lock: Any, act: str) -> None:
        asked_at = boot_time()
        try:
            lease = await done(lock.acquire())
        except (dibs.NotAcquired, dibs.StoreUnavailable) as refused:
            self._report(what="nothing", name=name, why=type(refused).__name__)
            await asyncio.sleep(A_WHILE)
            return
        granted_at = boot_time()
        now, left = boot_time(), lease.expires_in()
        valid_until = now + left if left else asked_at  # we were stopped at the last step of acquire
        facts = {"fence": lease.fence, "asked_at": asked_at, "granted_at": granted_at, "valid_until": valid_until}
        self._report(what="granted", name=name, **facts)
        os.write(self._granted, b".")
        await self._add_one(name, lease, act)
        called_at = boot_time()
        self._report(what="releases", name=name, at=called_at)  # who is killed in it may have given it back
        try:
            await done(lease.release())
        except dibs.LeaseLost:
            self._report(what="lost", name=name, told_at=called_at, returned_at=boot_time())
        except dibs.StoreUnavailable:
            self._report(what="left", name=name, at=called_at)
        else:
            self._report(what="given back", name=name, called_at=called_at, returned_at=boot_time())

    async def _add_one(self, name: str, lease: Any, act: str) -> None:
        """Read, work, write, whether the lease is still ours or not: that is the guard's to find out."""
        tally, seconds = self._tallies[name], random.choices([AT_ONCE, A_WHILE, TOO_LONG], [900, 95, 5])[0]
        seen = tally.read(lease.fence)
        if seen is None:
            return
        if seconds == A_WHILE:
            await self._renew(lease)
        if seconds:
            await asyncio.sleep(seconds)
        self._report(what="tries", name=name, act=act)
        written = tally.write(seen + 1, lease.fence, act)
        self._report(what="done" if written else "refused", name=name, act=act)

    @staticmethod
    async def _renew(lease: Any) -> None:
        with contextlib.suppress(dibs.LeaseLost, dibs.StoreUnavailable):
            await done(lease.renew())


async def done(step: Awaitable[T] | T) -> T:
    """What *step* returns, in either colour."""
    return await step if inspect.isawaitable(step) else step


def belongings() -> dict[str, int]:
    """What a client must not leave behind."""
    return {"threads": threading.active_count(), "descriptors": len(os.listdir("/proc/self/fd"))}


async def idle(before: dict[str, int]) -> dict[str, int]:
    """What there is when those who were told to end have had time to."""
    deadline = boot_time() + 5
    while (found := belongings()) != before and boot_time() < deadline:
        await asyncio.sleep(0.01)
    return found


if __name__ == "__main__":
    main()
