"""The record of an idempotent call as bytes: how it ended, what it was about, and what it returned.

A line of JSON, and after it the result as the caller's *dump* made it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

from dibs.core.checks import LONGEST_NAME, check_no_address
from dibs.errors import Misuse
from dibs.holder import Record

DONE, FAILED = "done", "failed"

LONGEST_ERROR = 500
"""Characters of an error that are kept."""


class Outcome(NamedTuple):
    """How an attempt ended."""

    state: str
    fingerprint: str | None
    """Of what the call was about; None if it has none."""
    attempt: int
    """Which attempt it was, from 1."""
    error: str | None
    """Of a failed attempt, why; of one that is done, why its result was not kept."""
    result: bytes

    def to_bytes(self) -> bytes:
        """Write it."""
        state, fingerprint, attempt, error, result = self
        facts = {"idempotent": 1, "state": state, "fingerprint": fingerprint, "attempt": attempt, "error": error}
        return _encoder()({**facts, "result": len(result)}).encode() + b"\n" + result


def read(record: Record) -> Outcome:
    """Read what `Outcome.to_bytes` wrote; `Misuse` if the record is of something else."""
    head, _, result = record.data.partition(b"\n")
    try:
        facts = from_json(head)
        version = facts.pop("idempotent")
        if version == 1 and facts["result"] == len(result):
            return Outcome(**{**facts, "result": result})
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise Misuse(
        f"the record of {record.name!r} was not left by an idempotent call; give calls of different kinds "
        "different names, or namespaces"
    )


def fingerprint_of(about: Any) -> str | None:
    """What stands for *about* in the record: a digest of text, of bytes, or of anything JSON can say."""
    if about is None:
        return None
    if isinstance(about, str):
        check_no_address(about, "fingerprint")
        kind, data = b"text ", about.encode("utf-8", "surrogatepass")
    elif isinstance(about, bytes):
        kind, data = b"bytes ", about
    else:
        kind, data = b"json ", to_json(about, "the fingerprint")
    return hashlib.sha256(kind + data).hexdigest()


def marked(note: str, fingerprint: str | None) -> str:
    """*note* and what the call is about, for callers that come while it runs; *note* alone if that is too long."""
    if fingerprint is None:
        return note
    whole = f"{note} {_MARK}{fingerprint[:_MARK_SIZE]}]".lstrip()
    return whole if len(whole.encode("utf-8", "surrogatepass")) <= LONGEST_NAME else note


def is_about_another(note: str, fingerprint: str | None) -> bool:
    """Whether the call that has left *note* with its lease is known to be about something else."""
    begin, end = len(note) - _MARK_SIZE - 1, len(note) - 1
    if fingerprint is None or not note[:begin].endswith(_MARK) or not note.endswith("]"):
        return False
    return note[begin:end] != fingerprint[:_MARK_SIZE]


_MARK, _MARK_SIZE = "[about ", 16


def to_json(value: Any, what: str = "the result") -> bytes:
    """Write *value* as JSON, always in the same way."""
    try:
        return _encoder(strict=True)(value).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise Misuse(f"{what} cannot be written as JSON ({exc}): {_shown(value)}") from exc


def from_json(data: bytes) -> Any:
    """Read what `to_json` wrote."""
    import json  # noqa: PLC0415 - see `_encoder`

    return json.loads(data)


@functools.cache
def _encoder(*, strict: bool = False) -> Callable[[Any], str]:
    import json  # noqa: PLC0415 - 2 ms at the start of every `dibs run`, which has no use for it

    return json.JSONEncoder(separators=(",", ":"), sort_keys=strict, allow_nan=not strict).encode


def shortened(error: BaseException) -> str:
    """An error in one line, for the record."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - it must not take the place of *error*, nor keep the lease from being given back
        said = "(its text cannot be made)"
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}…"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
