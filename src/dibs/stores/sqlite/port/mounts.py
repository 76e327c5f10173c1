"""Tells on which type of file system a path lies: file locks and shared memory must work there, between all who use it.

Of the types that the kernel shares with other machines there are too many to name, and new ones come. So those are
named that are known to be of one machine.
"""

from __future__ import annotations

import os
import re

LOCAL = frozenset(
    {
        "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "reiser4", "nilfs2",
        "tmpfs", "ramfs", "rootfs", "overlay", "overlayfs", "aufs", "fuse.fuse-overlayfs", "shiftfs", "ecryptfs",
        "fuseblk", "ntfs", "ntfs3", "hfs", "hfsplus", "apfs", "ufs", "udf", "minix",
    }
)  # fmt: skip
"""Types whose files only this machine opens. A container's root is an overlay of such ones; fuseblk is a disk's."""

_TABLE = "/proc/self/mountinfo"


def mounted_file(path: str, table: str | None = None) -> bool:
    """Whether *path* itself, and not a directory above it, is mounted."""
    return os.path.realpath(path) in {point for point, _ in _points(_mounts() if table is None else table)}


def foreign_file_system(directory: str, table: str | None = None) -> str | None:
    """The type of the file system that *directory* is on, unless it is known to be local; None if nobody can tell."""
    kind = _kind(os.path.realpath(directory), _mounts() if table is None else table)
    return None if kind in LOCAL else kind


def _mounts() -> str:
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""  # not Linux: the docs say that the choice of the directory is the user's there


def _kind(directory: str, table: str) -> str | None:
    """The type of the mount that *directory* is under: the longest point, and of equals the last, which covers."""
    longest, kind = -1, None
    for point, found in _points(table):
        if len(point) >= longest and _under(directory, point):
            longest, kind = len(point), found
    return kind


def _points(table: str) -> list[tuple[str, str]]:
    """Every mount point with its type."""
    points = []
    for line in table.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if separator and len(fields) >= 5:
            points.append((_plain(fields[4]), after.split(" ")[0]))
    return points


def _under(directory: str, point: str) -> bool:
    return directory == point or directory.startswith(point.rstrip("/") + "/")


def _plain(escaped: str) -> str:
    """The kernel writes blanks and backslashes of a mount point as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)
