"""Where the server programs are: on the PATH, or unpacked in .servers/ by tools/servers.sh."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

UNPACKED = Path(__file__).parents[2] / ".servers"

SYSTEM = ["/usr/sbin", "/usr/share/zookeeper/bin", *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
"""Where Debian keeps servers that users do not start."""


class Program(NamedTuple):
    """A program, and the environment it needs."""

    path: str
    environment: dict[str, str]


def program(name: str) -> Program:
    """Find the program *name*; without it the test is skipped, or fails in CI, where nothing may be missing."""
    if found := shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM)):
        return Program(found, {})
    for folder in sorted(UNPACKED.glob("*")):
        places = [
            folder / "usr/bin",
            folder / "usr/sbin",
            folder / "bin",
            *folder.glob("usr/lib/*/*/bin"),
            *folder.glob("usr/share/*/bin"),
        ]
        if found := shutil.which(name, path=os.pathsep.join(map(str, places))):
            return Program(found, {"LD_LIBRARY_PATH": libraries(folder)})
    return missing(f"there is no {name}; `make test` fetches it where there are Debian packages and a network")


def libraries(folder: Path) -> str:
    """The shared libraries that came with what was unpacked in *folder*."""
    own = [str(place) for pattern in ("lib/*-linux-*", "usr/lib/*-linux-*") for place in folder.glob(pattern)]
    return os.pathsep.join([*own, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def missing(what: str) -> NoReturn:
    """The test cannot run here."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
