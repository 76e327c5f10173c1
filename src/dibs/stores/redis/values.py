"""The strings in Redis, and what they tell: the value of a held lock, a ticket, an eviction."""

from __future__ import annotations

import math
from typing import NamedTuple
from urllib.parse import quote, unquote

from dibs.errors import LossReason
from dibs.holder import Eviction, Holder, moment, signature
from dibs.share import shown_share
from dibs.stores.store import Claim

SEVERAL = b"dibs.several:"
"""What the value of a lock begins with that several hold."""

OURS = ("dibs:", SEVERAL.decode())
"""What the value of every lock of ours begins with: of one that one holds, or several."""

GONE = -2
"""The ttl, as Redis tells it, of a key that is not there; one without a ttl has -1."""

IMMORTAL = (
    "has a value and no ttl, so nothing ends it (dibs show tells whose it is); if a client of dibs still holds it, its "
    "next renewal sets a ttl; if nobody holds it, delete the key"
)

FOR_EVER = 2**40
"""Seconds: longer than any lease."""

ANSWERS = {b"held": None, b"taken": LossReason.TAKEN, b"evicted": LossReason.EVICTED}
"""What a script says of a token that gives something back: it was held until now, or why not."""


class Value(NamedTuple):
    """The value of a held lock, read."""

    token: str
    fence: int
    since_us: int
    facts: str


def ms(ttl: float) -> int:
    """A ttl as Redis takes it; never shorter than what was asked for."""
    return math.ceil(ttl * 1000)


def longest_ms(claim: Claim) -> int:
    """The longest ttl of a grant as Redis takes it."""
    return ms(min(claim.longest, FOR_EVER))


def quoted(token: str) -> str:
    """*token* as it stands in a value: nothing in it can be read as the end of it."""
    return token if token.isalnum() and token.isascii() else quote(token, safe="")


def facts(who: Holder) -> str:
    """A holder or waiter, as the text that values and tickets end with."""
    return ":".join(quote(part, safe="") for part in (who.host, str(who.pid), who.user, who.note))


def read_value(raw: bytes) -> Value | None:
    """The value of a lock of ours; None if another program wrote it."""
    text = raw.decode("utf-8", "replace")
    parts = text.split(":", 4)
    if len(parts) != 5 or not text.startswith(OURS) or not (is_number(parts[2]) and is_number(parts[3])):
        return None
    return Value(parts[1], int(parts[2]), int(parts[3]), parts[4])


def is_number(text: str | bytes) -> bool:
    """Whether *text* is a fence or a moment as our scripts write it; other programs may write something else."""
    return text.isdigit() and text.isascii() and len(text) < 20


FOREIGN = "not a lock of dibs: another program set the key, and its value says nothing we can read"

ENDLESS = "its key has no ttl, so nothing ends it"

NOTE_EVICTION = "the next renewal of a living holder sets one; if nobody holds it, remove it with dibs evict"


def holder(name: str, key: bytes, raw: bytes, now_us: int, left_ms: float) -> Holder:
    """The holder of *name*, read from the value of its *key*; *left_ms* is below 0 if it has no end."""
    value, ends = read_value(raw), None if left_ms < 0 else left_ms / 1000
    if value is None:
        note = FOREIGN if ends is not None else f"{FOREIGN}; {ENDLESS}; if nobody holds it, {_delete(key)}"
        return _stranger(name, note, now_us, ends)
    held = _who(name, value.facts, value.fence, value.since_us, ends)
    note = held.note if ends is not None else "; ".join(filter(None, (held.note, ENDLESS, NOTE_EVICTION)))
    return held._replace(share=shown_share(value.token), note=note)


def no_string(name: str, key: bytes, now_us: int) -> Holder:
    """What stands in the way of *name*, if its *key* is of another kind."""
    note = f"not a lock of dibs: the key is of another kind, so the name cannot be locked; {_delete(key)}, or rename it"
    return _stranger(name, note, now_us, None)


def share_holder(name: str, token: bytes, told: bytes, left: float) -> Holder | None:
    """The holder of a share of *name*, read from the field of its *token*; None if another program wrote it."""
    fence, since, facts = [*told.decode("utf-8", "replace").split(":", 2), "", ""][:3]
    if not (is_number(fence) and is_number(since)):
        return None
    share = shown_share(token.decode("utf-8", "replace"))
    return _who(name, facts, int(fence), int(since), left)._replace(share=share)


def waiting(name: str, ticket: bytes, since_us: bytes, token: bytes = b"") -> Holder:
    """The waiter for *name*, read from its ticket."""
    facts, share = ticket.decode("utf-8", "replace").split(" ", 2)[-1], shown_share(token.decode("utf-8", "replace"))
    return _who(name, facts, 0, float(since_us), None)._replace(share=share)


def still_counts(ticket: bytes, now_us: int) -> bool:
    """Whether the owner of *ticket* has shown it lately."""
    until = ticket.partition(b" ")[0]
    return until.isdigit() and int(until) > now_us


def why(who: Holder, reason: str) -> str:
    """The user who evicts a holder, and the reason, as text."""
    return ":".join(quote(part, safe="") for part in (signature(who), reason))


def eviction(raw: bytes | None) -> Eviction | None:
    """The last eviction, as the script noted it; the tokens of those before stand behind it."""
    parts = raw.partition(b" ")[0].decode("utf-8", "replace").split(":") if raw else []
    if len(parts) != 5 or not (is_number(parts[1]) and is_number(parts[2])):
        return None
    _, fence, at_us, by, reason = parts
    return Eviction(int(fence), unquote(reason), unquote(by), moment(int(at_us) / 1e6))


def _who(name: str, text: str, fence: int, since_us: float, left: float | None) -> Holder:
    host, pid, user, note = ([unquote(part) for part in text.split(":")] + ["unknown"] * 4)[:4]
    since = moment(since_us / 1e6)
    return Holder(name, fence, host, int(pid) if is_number(pid) else 0, user, note, since, left)


def _stranger(name: str, note: str, now_us: int, ends: float | None) -> Holder:
    return Holder(name, 0, "unknown", 0, "unknown", note, now_us / 1e6, ends)


def _delete(key: bytes) -> str:
    return f"delete the key {key.decode('utf-8', 'replace')!r}"
