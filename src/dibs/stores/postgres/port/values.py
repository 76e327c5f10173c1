"""How values travel to PostgreSQL: as text, and without the one character that its text cannot have."""

from __future__ import annotations

NUL, SIGN = "\x00", "\x01"


def text(value: str) -> bytes:
    """*value* as PostgreSQL keeps it. NUL and the sign that stands for it become two characters each."""
    if SIGN in value or NUL in value:
        value = value.replace(SIGN, SIGN + SIGN).replace(NUL, SIGN + "0")
    return value.encode()


def original(stored: str | None) -> str:
    """What `text` was given."""
    if stored is None or SIGN not in stored:
        return stored or ""
    characters = iter(stored)
    return "".join((NUL if next(characters, "") == "0" else SIGN) if each == SIGN else each for each in characters)


def number(value: float) -> bytes:
    """A number as its digits."""
    return repr(value).encode()


def numbers(values: list[int] | list[float]) -> bytes:
    """An array of numbers."""
    return ("{" + ",".join(map(repr, values)) + "}").encode()


def texts(values: list[str]) -> bytes:
    """An array of texts."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return b"{" + b",".join(b'"' + text(value) + b'"' for value in quoted) + b"}"
