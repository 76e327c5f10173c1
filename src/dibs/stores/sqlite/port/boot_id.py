"""The name of this boot of the machine: boot-clock moments of another boot mean nothing, except that they passed."""

from __future__ import annotations

import functools

_LINUX = "/proc/sys/kernel/random/boot_id"
_SYSCTL = ("kern.bootsessionuuid", "kern.boottime")  # macOS; then the other BSDs


@functools.cache
def boot_id() -> str:
    """A text that is the same for every process until the machine restarts."""
    try:
        with open(_LINUX, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return next((found for found in map(_sysctl, _SYSCTL) if found), "unknown")


def _sysctl(name: str) -> str:
    import subprocess  # noqa: PLC0415 - costs 4 ms, and Linux does not need it

    try:
        asked = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False, timeout=5)
    except OSError:
        return ""
    return asked.stdout.strip()
