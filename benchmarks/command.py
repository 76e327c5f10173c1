"""How much later does a command end when `dibs run` guards it?"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from page import Aim, Answer, millis, table
from rounds import Scale, interleaved, median, percentile, together

AIM = 0.06

BARE, PYTHON, EXEC = "`true`", "`python -c pass`", "`true`, exec'd by a bare Python (floor)"
DIBS, FLOCK = "`dibs run x -- true`", "`flock FILE true` (util-linux)"


def measure(folder: Path, scale: Scale) -> Answer:
    """Whole processes, from their start to their end."""
    commands = {
        BARE: ["true"],
        PYTHON: [sys.executable, "-c", "pass"],
        EXEC: [sys.executable, "-c", "import os; os.execvp('true', ['true'])"],
        DIBS: [str(Path(sys.executable).parent / "dibs"), "run", "x", "--", "true"],
    }
    if shutil.which("flock"):
        commands[FLOCK] = ["flock", str(folder / "flock"), "true"]
    environment = _environment(folder)
    count = 5 if scale.quick else 10
    for words in commands.values():
        _time(words, environment)  # writes the bytecode
    runs = {name: functools.partial(_times, words, environment, count) for name, words in commands.items()}
    found = interleaved(runs, scale.rounds)
    middle = {name: [median(took) for took in rounds] for name, rounds in found.items()}
    added = {name: median(a - b for a, b in zip(middle[name], middle[EXEC], strict=True)) for name in found}
    over_bare = median(a - b for a, b in zip(middle[DIBS], middle[BARE], strict=True))
    rows = [
        [name, millis(median(middle[name])), millis(percentile(together(rounds), 0.9)), f"{added[name] * 1e3:+.1f}"]
        for name, rounds in found.items()
    ]
    aims = [
        Aim(
            "`dibs run` over exec of the same command by a bare Python", "< 60 ms", _ms(added[DIBS]), added[DIBS] < AIM
        ),
        Aim("`dibs run` over the command alone", "< 60 ms", _ms(over_bare), over_bare < AIM),
    ]
    return Answer([table(["command", "p50, ms", "p90, ms", "over the floor, ms"], rows)], aims)


def _environment(folder: Path) -> dict[str, str]:
    """Python finds its bytecode, as it does for what is installed; in a checkout it may be stale, or not be written."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "DIBS_URL": f"sqlite://{folder}/run.db", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def _ms(seconds: float) -> str:
    return f"{millis(seconds)} ms"


def _times(words: list[str], environment: dict[str, str], count: int) -> list[float]:
    return [_time(words, environment) for _ in range(count)]


def _time(words: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(words, env=environment, check=True)
    return time.perf_counter() - began
