"""Reads the URL of the embedded store: which file it means, and why others are refused."""

from __future__ import annotations

import os
import pwd
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from dibs.errors import Misuse

TRUST = "file_system=local"
"""The one option: nobody but this kernel opens files on this file system, whatever its type."""


class File(NamedTuple):
    """What a URL means."""

    path: str
    """Absolute."""
    trusted: bool
    """Whether the user vouches for the file system."""


def file_of(url: str) -> File:
    """The file that *url* names.

    ``sqlite:`` is the file of this user; ``sqlite:///srv/app/locks.db`` is an absolute path, taken literally;
    ``sqlite:locks.db`` is relative to the current directory of this moment. ``%20`` and its like are decoded.
    """
    rest, question, options = url.partition(":")[2].partition("?")
    if (question and options != TRUST) or "#" in url:
        raise Misuse(f"the only option of sqlite: is ?{TRUST}; in a file name write %3F for ? and %23 for #")
    if not rest:
        return File(_own_file(), bool(question))
    if ":memory:" in rest:
        raise Misuse("sqlite: keeps locks in a file; locks in memory are the store memory:")
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host or not slash:
            raise Misuse(
                "there is no host and no password in a sqlite: URL, as all users of the file are on one machine; "
                "write sqlite:///path/to/locks.db with three slashes for an absolute path, or sqlite:locks.db with "
                "none for one in the current directory"
            )
        rest = "/" + path
    return File(_absolute(os.fsdecode(unquote_to_bytes(rest))), bool(question))


def _absolute(path: str) -> str:
    if "\0" in path:
        raise Misuse("a path has no NUL character, and this sqlite: URL has one (%00)")
    if path.startswith("~"):
        raise Misuse("write the path of a sqlite: URL in full; only shells understand ~")
    if not os.path.basename(path):
        raise Misuse("this sqlite: URL ends with a directory; name the file in it, such as sqlite:///srv/app/locks.db")
    try:
        absolute = os.path.abspath(path)
    except FileNotFoundError as exc:
        raise Misuse(
            "this sqlite: URL is relative to the current directory, which was deleted; name an absolute path, such "
            "as sqlite:///srv/app/locks.db, or go to another directory"
        ) from exc
    return "/" + absolute.lstrip("/")  # POSIX leaves a meaning to two slashes at the beginning; we do not


def _own_file() -> str:
    """In the user's directory for state that outlives a program, by the XDG base directory specification.

    Relative values are ignored, as that says: the file would be another one in each directory.
    """
    home = os.environ.get("HOME", "")
    for base in (os.environ.get("XDG_STATE_HOME", ""), os.path.join(home, ".local", "state") if home else ""):
        if os.path.isabs(base) and not _of_another(base):
            return os.path.join(base, "dibs", "locks.db")
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        home = ""
    if not os.path.isabs(home):
        raise Misuse(
            "sqlite: is a file below the home directory of this user, but no home directory is known: set HOME or "
            "XDG_STATE_HOME to an absolute path, or name the file (here or in DIBS_URL): sqlite:///srv/app/locks.db"
        )
    return os.path.join(home, ".local", "state", "dibs", "locks.db")


def _of_another(base: str) -> bool:
    """Whether we are root and *base* belongs to another user, whom folders made by root would lock out."""
    if os.geteuid() != 0:
        return False
    while not os.path.lexists(base):
        base = os.path.dirname(base)
    return os.stat(base).st_uid != 0
