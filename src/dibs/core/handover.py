"""A lease as text: what one process gives to another so that it can keep, renew and release it."""

from __future__ import annotations

from urllib.parse import quote, unquote

from dibs.core.checks import LONGEST_TIME, checked_fence, checked_length, checked_name, checked_note
from dibs.errors import Misuse
from dibs.stores.store import Claim

VERSION = "dibs1"

LONGEST_GRANT = 1.5 * LONGEST_TIME
"""Seconds: a store may grant somewhat more than the ttl that was asked for."""


def to_text(claim: Claim, note: str) -> str:
    """Write *claim* as one word that survives shells, URLs, JSON and environment variables."""
    parts = (claim.name, claim.token, str(claim.fence), repr(claim.ttl), note)
    return ":".join((VERSION, *(quote(part, safe="") for part in parts)))


def from_text(text: object) -> tuple[Claim, str]:
    """Read what `to_text` wrote: the claim and the note."""
    if not isinstance(text, str):
        raise Misuse(f"a lease as text is what lease.to_str() returned, not {type(text).__name__}: {text!r}")
    version, *parts = text.strip().split(":")
    if version != VERSION or len(parts) != 5:
        raise Misuse(f"this is not a lease as lease.to_str() writes it ({VERSION}:…): {text[:40]!r}")
    name, token, fence, ttl, note = (unquote(part) for part in parts)
    try:
        claim = Claim(
            checked_name(name),
            checked_name(token, "token"),
            checked_fence(int(fence)),
            checked_length(float(ttl), "ttl", at_most=LONGEST_GRANT),
        )
    except ValueError as exc:
        raise Misuse(f"the lease as text is damaged: {exc}") from exc
    return claim, checked_note(note)
