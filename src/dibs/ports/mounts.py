"""Tells which directories lie on a file system of another machine, where file locks and shared memory do not work."""

from __future__ import annotations

import os
import re

NETWORK = frozenset(
    {
        "nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "ncpfs", "9p", "afs", "auristorfs",
        "coda", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "pvfs2", "orangefs", "ocfs2", "gfs2", "gfs",
        "panfs", "vboxsf", "vmhgfs", "prl_fs", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
        "fuse.ceph-fuse", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.davfs", "fuse.vmhgfs-fuse",
        "fuse.juicefs", "fuse.mount.juicefs", "fuse.cephfs", "fuse.beegfs", "fuse.lizardfs", "fuse.mfs",
        "fuse.moosefs", "fuse.smbnetfs", "fuse.curlftpfs", "fuse.httpfs", "fuse.nfs",
    }
)  # fmt: skip
"""File system types whose files two machines can open at once."""

_TABLE = "/proc/self/mountinfo"


def network_file_system(directory: str, table: str | None = None) -> str | None:
    """The type of the network file system that *directory* is on; None if it is local, or nobody can tell."""
    kind = _kind(os.path.realpath(directory), _mounts() if table is None else table)
    return kind if kind in NETWORK else None


def _mounts() -> str:
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""  # not Linux: the docs say that the choice of the directory is the user's there


def _kind(directory: str, table: str) -> str | None:
    """The type of the mount that *directory* is under: the longest point, and of equals the last, which covers."""
    longest, kind = -1, None
    for line in table.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _plain(fields[4])
        if len(point) >= longest and _under(directory, point):
            longest, kind = len(point), after.split(" ")[0]
    return kind


def _under(directory: str, point: str) -> bool:
    return directory == point or directory.startswith(point.rstrip("/") + "/")


def _plain(escaped: str) -> str:
    """The kernel writes blanks and backslashes of a mount point as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)
