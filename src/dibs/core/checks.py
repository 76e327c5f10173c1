"""Refuses what cannot be right before anything is sent: names, lengths of time, options."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeAlias

from dibs.errors import Misuse

Seconds: TypeAlias = float | timedelta
"""A length of time: seconds as int or float, or a timedelta."""

LONGEST_NAME = 1000
"""Bytes of UTF-8; what every store can carry."""

LONGEST_TIME = 10 * 365 * 86_400.0
"""Ten years: longer is a mistake of units, and every store can express it."""


def checked_name(name: object, what: str = "name") -> str:
    """Return *name* if it can name a lock."""
    if not isinstance(name, str):
        raise Misuse(f"a {what} is text (str), not {type(name).__name__}: {name!r}")
    if not name:
        raise Misuse(f"a {what} is not empty")
    if len(name) * 4 > LONGEST_NAME or not name.isascii():
        _check_bytes(name, what)
    return name


def _check_bytes(name: str, what: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise Misuse(f"the {what} {name!r} has a lone surrogate, which no store can keep") from exc
    if size > LONGEST_NAME:
        raise Misuse(f"a {what} has at most {LONGEST_NAME} bytes, this one has {size}: {name[:40]!r}…")


def checked_note(note: object) -> str:
    """Return *note* if it can be stored and shown."""
    return checked_name(note, "note") if note != "" else ""


def checked_timeout(timeout: object) -> float | None:
    """Return *timeout* in seconds: None waits for ever, 0 tries once."""
    if timeout is None:
        return None
    value = _finite(timeout, "timeout")
    if value < 0:
        raise Misuse(f"timeout={timeout!r}: None waits for ever and 0 tries once; negative means nothing")
    return value


def checked_length(value: object, what: str, *, at_least: float = 0.0) -> float:
    """Return *value*, a length of time above zero, in seconds."""
    seconds = _finite(value, what)
    if seconds <= 0:
        raise Misuse(f"{what}={value!r}: it must be more than 0 seconds")
    if seconds < at_least:
        raise Misuse(f"{what}={value!r}: this store cannot express less than {at_least:g} seconds")
    return seconds


def _finite(value: object, what: str) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misuse(f"{what}={value!r}: it is a number of seconds or a timedelta")
    if not math.isfinite(value) or value > LONGEST_TIME:
        raise Misuse(f"{what}={value!r}: it must be finite and at most ten years, in seconds")
    return float(value)


def checked_fence(fence: object) -> int:
    """Return *fence* if it can be one: an integer from 1 to 2^63 - 1."""
    if isinstance(fence, bool) or not isinstance(fence, int) or not 0 < fence < 2**63:
        raise Misuse(f"fence={fence!r}: it is a positive whole number below 2^63, as in `lease.fence`")
    return fence
