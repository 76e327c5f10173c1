"""Which store a call means: one URL that means the same in every directory, and a look at it that creates nothing."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dibs.cli.lines import say
from dibs.cli.options import namespace_of
from dibs.errors import Misuse

if TYPE_CHECKING:
    from dibs import Client
    from dibs.holder import Holder, LockState, Record
    from dibs.stores.guarantees import Guarantees


def url_of(args: argparse.Namespace) -> str:
    """Tell where the locks are. A relative path is made absolute: what the command runs may be in another directory."""
    from dibs.core.connecting import EMBEDDED  # noqa: PLC0415 - not needed for --help

    url = str(args.url if args.url is not None else os.environ.get("DIBS_URL") or EMBEDDED)
    scheme = url.partition(":")[0].lower()
    if scheme == "memory":
        raise Misuse(
            "memory: is the memory of one process and ends with this one, so it guards nothing on the command line; "
            "leave it out for the locks of this user on this machine"
        )
    if scheme != "sqlite":
        return url
    from dibs.stores.sqlite.url import TRUST, file_of  # noqa: PLC0415 - not needed for --help

    file = file_of(url)
    return f"sqlite://{_quoted(file.path)}{f'?{TRUST}' if file.trusted else ''}"


def connected(args: argparse.Namespace) -> Client:
    """Make the client of the store that *args* names; the first step connects."""
    from dibs import connect  # noqa: PLC0415 - not needed for --help

    return connect(url_of(args), namespace=namespace_of(args))


@contextmanager
def looking(args: argparse.Namespace) -> Iterator[Client | Nowhere]:
    """Make the client for a verb that takes no lock: where there is no file yet, it makes none."""
    url = url_of(args)
    with connected(args) as client:
        if url.startswith("sqlite:") and _is_missing(path := _file(url)):
            yield Nowhere(client.guarantees)
            say(f"nobody has taken a lock in {path}: there is no such file")
        else:
            yield client


class Nowhere:
    """What is found in a store that is not there, by the names that `Client` has for it."""

    def __init__(self, guarantees: Guarantees) -> None:
        self.guarantees = guarantees

    def holders(self, prefix: str) -> list[Holder]:
        """Nobody holds anything."""
        del prefix
        return []

    def show(self, name: str) -> LockState:
        """It was never locked."""
        from dibs.core.checks import checked_name  # noqa: PLC0415 - loaded by now
        from dibs.holder import LockState  # noqa: PLC0415 - the same

        return LockState(checked_name(name), 0, None, (), None)

    def record(self, name: str) -> Record | None:
        """Nothing was left there."""
        del name
        return None

    def evict(self, name: str, *, fence: int, reason: str) -> bool:
        """There is nothing to break."""
        del fence, reason
        self.show(name)  # refuses what is no name
        return False


def _file(url: str) -> str:
    from dibs.stores.sqlite.url import file_of  # noqa: PLC0415 - not needed for --help

    return file_of(url).path


def _is_missing(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # the store says what is wrong
    return False


def _quoted(path: str) -> str:
    from urllib.parse import quote_from_bytes  # noqa: PLC0415 - the same

    return quote_from_bytes(os.fsencode(path))
