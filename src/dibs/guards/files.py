"""A guard of plain files, by their names: the newest version wins, and a late writer writes what nobody reads.

A folder has no compare-and-set, and a lock on a file would be held by exactly the process that stands still. What it
has is: a hard link is made or is not, and is counted. The versions of ``data`` are

    data.17.3       the third write of the grant with fence 17
    data.18.claim   fence 18 was shown: nothing below counts any more, but for what is carried over:
    data.18.0       what was the newest below 18, as a second link to that very file

Whoever finds a claim with nothing carried over yet, writer or reader, carries over. A writer links its version and
then looks for a newer claim. If there is one, it takes its link away again, and the file's count of links tells,
exactly, whether it had been carried over before: then it was written, else it was refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dibs.core.checks import checked_fence
from dibs.errors import Misuse, StaleFence
from dibs.guards.order import SEALED, checked_write

NOTHING = 0
"""The time, by its own mark, of a claim's file, which stands for "nothing was written": an empty version is another."""


class Version(NamedTuple):
    """One version, by its place in the order."""

    fence: int
    seq: int


class FileGuard:
    """One file that holders of a lock write in turn: ``guard.write(name, fence, seq, data)``; anybody may `read`.

    *path* is where it would be; its versions stand beside it, ``data.FENCE.SEQ``. The guard is for one lock *name*. It
    needs a file system with hard links, on which all processes see the same at once: a local one.
    """

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        self._path, self._name = Path(path), name
        self._version = re.compile(re.escape(self._path.name) + r"\.([1-9]\d{0,18})\.(\d{1,19}|claim)", re.ASCII)

    def claim(self, name: str, fence: int) -> None:
        """Refuse all older fences from now on; `StaleFence` if this is one."""
        self._check_name(name)
        fence = checked_fence(fence)
        if self._highest_fence() > fence:
            raise StaleFence(name, fence, self._highest_fence())
        with self._temporary(b"") as (nothing, _), suppress(FileExistsError):
            os.utime(nothing, ns=(NOTHING, NOTHING))
            os.link(nothing, self._file(fence, "claim"))
            self._sync_folder()
        self._carry_over()
        self.check(name, fence)

    def write(self, name: str, fence: int, seq: int, data: bytes) -> bool:
        """Write version *seq* of this grant; False if it is there already, with the same *data*."""
        self._check_name(name)
        checked_write(0, name, fence, seq, "")
        self.check(name, fence)
        newest = self._newest()
        if newest is not None and newest.fence == fence and newest.seq >= seq:
            return self._is_repeat(name, newest, Version(fence, seq), data)
        with self._temporary(data) as (temporary, opened):
            try:
                os.link(temporary, self._file(fence, seq))
            except FileExistsError:
                return self._is_repeat(name, Version(fence, seq), Version(fence, seq), data)
            self._sync_folder()
            temporary.unlink()  # only now: from here on its links are versions
            if self._highest_fence() > fence:
                self._take_back(fence, seq, opened)
        return True

    def read(self) -> bytes | None:
        """The newest version; None if nothing was written yet."""
        while True:
            self._carry_over()
            newest = self._newest()
            if newest is None:
                return None
            with suppress(FileNotFoundError), self._file(*newest).open("rb") as file:  # it may be pruned or taken back
                facts = os.fstat(file.fileno())
                is_nothing = facts.st_size == 0 and facts.st_mtime_ns == NOTHING
                return None if is_nothing else file.read()

    def check(self, name: str, fence: int) -> None:
        """Raise `StaleFence` if a newer fence was here, or the grant was sealed."""
        self._check_name(name)
        current = self._highest_fence()
        if current > checked_fence(fence) or (current == fence and self._file(fence, SEALED).exists()):
            raise StaleFence(name, fence, current)

    def seal(self, name: str, fence: int) -> bool:
        """Refuse *fence* as well from now on, by a last version with the highest number."""
        try:
            self.claim(name, fence)
            newest = self._newest()
            assert newest is not None, "a claim leaves a version"
            os.link(self._file(*newest), self._file(fence, SEALED))
        except (StaleFence, FileExistsError, FileNotFoundError):  # a newer one came, also after the claim
            return False
        self._sync_folder()
        return True

    def prune(self) -> None:
        """Remove the versions of all grants but the newest and the one before it; nobody reads them any more."""
        fences = sorted({fence for fence, _ in self._names()})
        for fence, what in list(self._names()):
            if fence in fences[:-2]:
                self._file(fence, what).unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<FileGuard {self._path}>"

    # --- what stands in the folder ----------------------------------------------------------------------------

    def _names(self) -> Iterator[tuple[int, str]]:
        """Fence and the rest of each name: a seq, or ``claim``."""
        for file in os.listdir(self._path.parent):
            found = self._version.fullmatch(file)
            if found:
                yield int(found[1]), found[2]

    def _highest_fence(self) -> int:
        return max((fence for fence, _ in self._names()), default=0)

    def _newest(self) -> Version | None:
        return max((Version(fence, int(what)) for fence, what in self._names() if what != "claim"), default=None)

    def _file(self, fence: int, what: str | int) -> Path:
        return self._path.with_name(f"{self._path.name}.{fence}.{what}")

    def _carry_over(self) -> None:
        """Let the newest claim have what was the newest version below it, unless it has a version."""
        while True:
            fence, newest = self._highest_fence(), self._newest()
            if fence == 0 or (newest is not None and newest.fence >= fence):
                return
            source = self._file(*newest) if newest is not None else self._file(fence, "claim")
            try:
                os.link(source, self._file(fence, 0))
                self._sync_folder()
            except FileExistsError:
                return  # another did
            except FileNotFoundError:
                continue  # its writer took it back before: then it was refused

    def _take_back(self, fence: int, seq: int, opened: int) -> None:
        """A newer claim came: take the link away, and see whether it had been carried over before."""
        self._file(fence, seq).unlink(missing_ok=True)
        if os.fstat(opened).st_nlink == 0:
            raise StaleFence(self._name, fence, self._highest_fence())

    def _is_repeat(self, name: str, newest: Version, mine: Version, data: bytes) -> bool:
        if newest != mine:
            raise StaleFence(name, mine.fence, newest.fence)
        if self._file(*mine).read_bytes() != data:
            raise Misuse(f"seq={mine.seq} of {name!r} (fence {mine.fence}) was used for another write")
        return False

    def _check_name(self, name: str) -> None:
        if name != self._name:
            raise Misuse(f"this guard is for the lock {self._name!r}, and the fence is of {name!r}")

    @contextmanager
    def _temporary(self, data: bytes) -> Iterator[tuple[Path, int]]:
        """A file with *data* that is safe on the disk, and open."""
        path = self._path.with_name(f".{self._path.name}.{os.getpid()}.{os.urandom(8).hex()}")
        opened = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            with os.fdopen(os.dup(opened), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(opened)
            yield path, opened
        finally:
            os.close(opened)
            path.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
