"""Where the embedded store may keep its files: a local directory of ours that nobody else can write to.

Whoever can write to the directory can put a link in the place of a file, or replace the database, and so grant
itself any lock. This is checked once, before anything is opened; after that the directory is ours, so nothing in
it changes between a check and the use of what was checked.
"""

from __future__ import annotations

import contextlib
import os
import stat

from dibs.errors import Misuse
from dibs.stores.sqlite.port.mounts import foreign_file_system, mounted_file


class Place:
    """The paths of one database and of what lies beside it."""

    def __init__(self, path: str, *, trusted: bool = False) -> None:
        """*trusted*: the user vouches for the file system."""
        self.path, self._trusted = path, trusted
        self.directory = os.path.dirname(path)
        self.beside = path + ".d"
        self.alive = os.path.join(self.beside, "alive")
        self.bells = os.path.join(self.beside, "bells")
        self.gate = os.path.join(self.beside, "gate")
        self.files = (path, path + "-wal", path + "-shm")

    def prepare(self) -> None:
        """Make the directory and an empty database where there are none, and refuse what is not safe."""
        _make_directories(self.directory)
        _check(self.directory, stat.S_ISDIR, "directory")
        self._check_mount()
        if not os.path.lexists(self.path):
            _make_file(self.path)
        _check(self.path, stat.S_ISREG, "regular file")

    def _check_mount(self) -> None:
        kind = None if self._trusted else foreign_file_system(self.directory)
        if kind is not None:
            raise Misuse(
                f"{self.directory} is on a file system of type {kind}, which other machines or kernels may share: file "
                "locks and SQLite's shared memory do not work between them. Take a local directory, or a store with a "
                "server, such as redis:// or postgresql://, for locks that several machines share. If only this "
                f"machine uses it, say so: sqlite://{self.path}?file_system=local"
            )
        if mounted_file(self.path):
            raise Misuse(
                f"{self.path} itself is mounted, as a single file; the files that SQLite keeps beside it would differ "
                "between containers: mount its directory instead"
            )

    def is_at(self, path: str) -> bool:
        """Whether *path* names the file of the database."""
        try:
            return bool(path) and os.path.samefile(path, self.path)
        except OSError:
            return False

    def prepare_beside(self) -> None:
        """Make the folder for liveness files, bells and the gate. Called when the database is known to be ours."""
        for folder in (self.beside, self.alive, self.bells):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            _check(folder, stat.S_ISDIR, "directory")


def _make_directories(directory: str) -> None:
    """Like `os.makedirs`, but private all the way: that one gives its mode to the last part only."""
    if os.path.lexists(directory):
        return
    _make_directories(os.path.dirname(directory))
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)


def _make_file(path: str) -> None:
    """Make an empty private file.

    SQLite would make it readable for others. We never open the real file ourselves: closing it would drop the
    POSIX locks that any SQLite connection of this process has on it. So it is made elsewhere and linked into place.
    """
    fresh = f"{path}.{os.urandom(8).hex()}"
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        os.unlink(fresh)


def _check(path: str, is_kind: object, kind: str) -> None:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise Misuse(f"{path} is a symbolic link; name the {kind} itself, so that nobody can point it elsewhere")
    assert callable(is_kind)
    if not is_kind(found.st_mode):
        raise Misuse(f"{path} is not a {kind}; choose another path for the locks")
    if found.st_uid != os.geteuid():
        raise Misuse(
            f"{path} belongs to user id {found.st_uid} and this process runs as {os.geteuid()}: whoever owns it could "
            f"grant itself any lock; choose a path in a directory of your own{_example(path, found)}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Misuse(
            f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}), who could grant themselves any "
            f"lock: {_remedy(path, found)}"
        )


def _remedy(path: str, found: os.stat_result) -> str:
    """Never to close what is meant for all: root owns /tmp, and without it the machine stands still."""
    if found.st_mode & stat.S_ISVTX:
        return f"choose a path in a directory of your own{_example(path, found)}"
    return "run chmod go-w on it, or choose a private directory"


def _example(path: str, found: os.stat_result) -> str:
    """Where anybody may make a directory, name one: it is made when it is first used, and private."""
    shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    return f", such as sqlite://{path}/NAME/locks.db" if shared else ""
