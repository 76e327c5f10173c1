"""The wall clock of a server, which a test can shift while it runs."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from servers.programs import missing

SOURCE = Path(__file__).with_name("clock_shim.c")


class Clock:
    """Give its *environment* to a server, then shift that server's wall clock; no other clock moves.

    with Clock() as clock, RedisServer(clock=clock) as server:
        clock.shift(60)
    """

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="dibs-clock-", ignore_cleanup_errors=True)
        self._file = Path(self._temporary.name) / "shift"
        self._file.write_bytes(bytes(8))
        self.environment = {
            "LD_PRELOAD": str(compiled(Path(self._temporary.name))),
            "DIBS_CLOCK_FILE": str(self._file),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._temporary.cleanup()

    def shift(self, seconds: float) -> None:
        """Let it differ from the true time by so many seconds, from now on; negative is back, 0 is right."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:] = struct.pack("=q", round(seconds * 1_000_000))  # one copy of 8 bytes, not 8 writes


def compiled(folder: Path) -> Path:
    """The library to preload, made in *folder*."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        missing("shifting the clock of a server takes Linux and a C compiler")
    library = folder / "clock_shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SOURCE], check=True)
    return library
