"""Reads the URL of the embedded store: which file it means, and why others are refused."""

from __future__ import annotations

import os
from urllib.parse import unquote_to_bytes

from dibs.errors import Misuse


def path_of(url: str) -> str:
    """The absolute path that *url* names; nothing is looked up.

    ``sqlite:`` is the file of this user; ``sqlite:///srv/app/locks.db`` is an absolute path, taken literally;
    ``sqlite:locks.db`` is relative to the current directory of this moment. ``%20`` and its like are decoded.
    """
    rest = url.partition(":")[2]
    if not rest:
        return _own_file()
    if ":memory:" in rest:
        raise Misuse(f"{url}: locks in memory are the store memory:")
    if "?" in rest or "#" in rest:
        raise Misuse(f"{url}: this store takes no options; in a file name write %3F for ? and %23 for #")
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host or not slash:
            raise Misuse(
                f"{url}: there is no host in this URL, because all who share the file are on one machine; "
                f"write sqlite:///{host or 'path/to/locks.db'} with three slashes for an absolute path, "
                "or sqlite:locks.db with none for one in the current directory"
            )
        rest = "/" + path
    return _file(url, os.fsdecode(unquote_to_bytes(rest)))


def _file(url: str, path: str) -> str:
    if "\0" in path:
        raise Misuse(f"{url}: a path has no NUL character")
    if path.startswith("~"):
        raise Misuse(f"{url}: write the path in full, ~ means something to shells only")
    if not os.path.basename(path):
        raise Misuse(f"{url}: this is a directory; name the file in it, such as {url}locks.db")
    absolute = os.path.abspath(path)
    return "/" + absolute.lstrip("/")  # POSIX leaves a meaning to two slashes at the beginning; we do not


def _own_file() -> str:
    """In the user's directory for state that outlives a program, by the XDG base directory specification."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification says to ignore relative ones
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "dibs", "locks.db")
