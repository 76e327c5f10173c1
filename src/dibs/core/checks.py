"""Refuses what cannot be right before anything is sent: names, lengths of time, options."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import NamedTuple, TypeAlias, TypeGuard

from dibs.errors import Misuse
from dibs.share import MOST_SLOTS, Share

Seconds: TypeAlias = float | timedelta
"""A length of time: seconds as int or float, or a timedelta."""

LONGEST_NAME = 1000
"""Bytes of UTF-8; what every store can carry."""

LONGEST_TIME = 10 * 365 * 86_400.0
"""Ten years: longer is a mistake of units, and every store can express it."""


class LockOptions(NamedTuple):
    """What describes a lock, checked."""

    name: str
    ttl: float
    timeout: float | None
    note: str
    max_hold: float | None
    on_lost: str


def checked_options(
    name: object,
    ttl: object,
    timeout: object,
    note: object,
    max_hold: object,
    on_lost: object,
    shortest_ttl: float = 0.0,
    longest_ttl: float = LONGEST_TIME,
) -> LockOptions:
    """Return the options of a lock if there can be such a lock."""
    length = checked_length(ttl, "ttl", at_least=shortest_ttl, at_most=longest_ttl)
    longest = None if max_hold is None else checked_length(max_hold, "max_hold")
    if longest is not None and longest < length:
        raise Misuse(f"max_hold={shown(max_hold)} is shorter than ttl={shown(ttl)}; lower the ttl too")
    if on_lost not in ("cancel", "flag"):
        raise Misuse(f'on_lost={shown(on_lost)}: it is "cancel" or "flag"')
    checked = checked_name(name)
    check_no_address(checked, "name")
    return LockOptions(checked, length, checked_timeout(timeout), checked_note(note), longest, str(on_lost))


def checked_name(name: object, what: str = "name") -> str:
    """Return *name* if it can name a lock."""
    if not isinstance(name, str):
        advice = '; a decorator takes its name in brackets: @client.locked("report")' if callable(name) else ""
        raise Misuse(f"a {what} is text (str), not {type(name).__name__}: {shown(name)}{advice}")
    if not name:
        raise Misuse(f"a {what} is not empty")
    if len(name) * 4 > LONGEST_NAME or not name.isascii():
        _check_bytes(name, what)
    return name


def check_no_address(text: str, what: str) -> None:
    """Refuse a text that contains the address of an object, for it differs from process to process."""
    if " at 0x" in text and has_address(text):
        raise Misuse(
            f"the {what} {shown(text)} contains the address of an object, which differs from process to process: use "
            "what identifies the object instead, such as its id"
        )


def has_address(text: str) -> bool:
    """Whether *text* contains an address, which is what Python writes for an object without a text of its own."""
    import re  # noqa: PLC0415 - hardly ever needed

    return re.search(r"<.* at 0x[0-9a-f]+", text) is not None


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
        raise Misuse(f"timeout={shown(timeout)}: None waits for ever and 0 tries once; negative means nothing")
    return value


def checked_length(value: object, what: str, *, at_least: float = 0.0, at_most: float = LONGEST_TIME) -> float:
    """Return *value*, a length of time above zero, in seconds."""
    seconds = _finite(value, what, max(LONGEST_TIME, at_most))
    if seconds <= 0:
        raise Misuse(f"{what}={shown(value)}: it must be more than 0 seconds")
    if seconds < at_least:
        raise Misuse(f"{what}={shown(value)}: this store cannot express less than {at_least:g} seconds")
    if seconds > at_most:
        raise Misuse(
            f"{what}={shown(value)}: this store cannot express more than {at_most:g} seconds; choose a shorter one: a "
            "lease is renewed for as long as it is held"
        )
    return seconds


def _finite(value: object, what: str, at_most: float = LONGEST_TIME) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise Misuse(f"{what}={shown(value)}: it is a number of seconds or a timedelta")
    if abs(seconds) > at_most or not math.isfinite(seconds):  # in this order: huge integers are not floats
        raise Misuse(f"{what}={shown(value)}: it must be finite and at most ten years, in seconds")
    return float(seconds)


def checked_share(slots: object, weight: object) -> Share:
    """Return the part of a semaphore, if it can have so many slots and somebody so many of them."""
    if not _is_count(slots) or not 0 < slots <= MOST_SLOTS:
        raise Misuse(f"slots={shown(slots)}: a semaphore has 1 to {MOST_SLOTS:,} slots")
    if not _is_count(weight) or not 0 < weight <= slots:
        raise Misuse(f"weight={shown(weight)}: of {slots} slots one can take 1 to {slots}, or it would wait for ever")
    return Share(weight, slots)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def checked_fence(fence: object, what: str = "fence") -> int:
    """Return *fence* if it can be one: an integer from 1 to 2^63 - 1."""
    if isinstance(fence, bool) or not isinstance(fence, int) or not 0 < fence < 2**63:
        raise Misuse(f"{what}={shown(fence)}: it is a positive whole number below 2^63, as in `lease.fence`")
    return fence


def shown(value: object) -> str:
    """The value as an error names it: whole if it is short."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"an {type(value).__name__} that is too large to show"
    return text if len(text) <= 80 else f"{text[:80]}…"
