"""The records of a lock server inside this process: what holders left, until when, and who wrote it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from dibs.holder import Record

SWEPT = 4
"""Records that are looked at for each that is written: so those that are over never outnumber the others for long."""


class _Kept(NamedTuple):
    token: str
    fence: int
    data: bytes
    at: float
    until: float
    """On the boot clock."""


class Shelf:
    """Records by namespace and name. It has no lock of its own: the server's steps are atomic."""

    def __init__(self, now: Callable[[], float], wall_us: Callable[[], int]) -> None:
        self._now, self._wall_us = now, wall_us
        self._kept: dict[tuple[str, str], _Kept] = {}

    def put(self, space: str, name: str, token: str, fence: int, data: bytes, keep: float) -> list[tuple[str, str]]:
        """Keep *data* for *keep* seconds; return some whose records are over and were dropped."""
        self._kept.pop((space, name), None)
        self._kept[space, name] = _Kept(token, fence, data, self._wall_us() / 1e6, self._now() + keep)
        return self._sweep()

    def find(self, space: str, name: str) -> Record | None:
        """The record of *name*, if it is not over."""
        kept, now = self._kept.get((space, name)), self._now()
        if kept is None or kept.until <= now:
            return None
        return Record(name, kept.fence, kept.data, kept.at, kept.until - now)

    def has(self, space: str, name: str, token: str, fence: int, data: bytes) -> bool:
        """Whether this is the record that is there."""
        kept = self._kept.get((space, name))
        return kept is not None and kept[:3] == (token, fence, data)

    def all(self, space: str, prefix: str) -> list[Record]:
        """The records of names that begin with *prefix*."""
        names = [name for known, name in self._kept if known == space and name.startswith(prefix)]
        return [record for name in names if (record := self.find(space, name)) is not None]

    def remove(self, space: str, name: str, fence: int) -> bool:
        """Remove the record of the grant *fence*; tell whether it was there."""
        record = self.find(space, name)
        if record is None or record.fence != fence:
            return False
        del self._kept[space, name]
        return True

    def _sweep(self) -> list[tuple[str, str]]:
        """Drop some that are over: the oldest are first, and one that lives on goes to the end."""
        now, dropped = self._now(), []
        for key in list(itertools.islice(self._kept, SWEPT)):
            kept = self._kept.pop(key)
            if kept.until > now:
                self._kept[key] = kept
            else:
                dropped.append(key)
        return dropped
