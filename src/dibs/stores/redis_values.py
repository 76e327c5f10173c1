"""The strings in Redis, and what they tell: the value of a held lock, a ticket, an eviction."""

from __future__ import annotations

import math
from typing import NamedTuple
from urllib.parse import quote, unquote

from dibs.errors import LossReason
from dibs.holder import Eviction, Holder
from dibs.part import shown_part

SEVERAL = b"dibs.several:"
"""What the value of a lock begins with that several hold."""

OURS = ("dibs:", SEVERAL.decode())
"""What the value of every lock of ours begins with: of one that one holds, or several."""

ANSWERS = {b"held": None, b"taken": LossReason.TAKEN, b"evicted": LossReason.EVICTED}
"""What a script says of the one who ends something: it was held until now, or why not."""


class Value(NamedTuple):
    """The value of a held lock, read."""

    token: str
    fence: int
    since_us: int
    facts: str


def ms(ttl: float) -> int:
    """A ttl as Redis takes it; never shorter than what was asked for."""
    return math.ceil(ttl * 1000)


def quoted(token: str) -> str:
    """*token* as it stands in a value: nothing in it can be read as the end of it."""
    return token if token.isalnum() and token.isascii() else quote(token, safe="")


def facts(who: Holder) -> str:
    """Who holds or waits, as text."""
    return ":".join(quote(part, safe="") for part in (who.host, str(who.pid), who.user, who.note))


def read_value(raw: bytes) -> Value | None:
    """The value of a lock of ours; None if another program wrote it."""
    text = raw.decode("utf-8", "replace")
    parts = text.split(":", 4)
    if len(parts) != 5 or not text.startswith(OURS) or not (parts[2].isdecimal() and parts[3].isdecimal()):
        return None
    return Value(parts[1], int(parts[2]), int(parts[3]), parts[4])


def holder(name: str, raw: bytes, now_us: int, left_ms: int) -> Holder:
    """Who holds *name*, by the value of its key."""
    value = read_value(raw)
    if value is None:
        note = "not a lock of dibs: another program set the key, and its value says nothing we can read"
        return Holder(name, 0, "unknown", 0, "unknown", note, now_us / 1e6, left_ms / 1000)
    held = _who(name, value.facts, value.fence, value.since_us / 1e6, left_ms / 1000)
    return held._replace(part=shown_part(value.token))


def part_holder(name: str, token: bytes, told: bytes, left: float) -> Holder:
    """Who holds a part of *name*, by what stands there for its *token*."""
    fence, since, facts = told.decode("utf-8", "replace").split(":", 2)
    return _who(name, facts, int(fence), int(since) / 1e6, left)._replace(part=shown_part(token.decode()))


def waiting(name: str, ticket: bytes, since_us: bytes, token: bytes = b"") -> Holder:
    """Who waits for *name*, by its ticket."""
    facts, part = ticket.decode("utf-8", "replace").split(" ", 2)[-1], shown_part(token.decode("utf-8", "replace"))
    return _who(name, facts, 0, float(since_us) / 1e6, None)._replace(part=part)


def still_counts(ticket: bytes, now_us: int) -> bool:
    """Whether the owner of *ticket* has shown it lately."""
    until = ticket.partition(b" ")[0]
    return until.isdigit() and int(until) > now_us


def why(who: Holder, reason: str) -> str:
    """Who broke a lock and for what reason, as text."""
    return ":".join(quote(part, safe="") for part in (f"{who.user} on {who.host} pid {who.pid}", reason))


def eviction(raw: bytes | None) -> Eviction | None:
    """The last eviction, as the script noted it."""
    parts = raw.decode("utf-8", "replace").split(":") if raw else []
    if len(parts) != 5:
        return None
    _, fence, at_us, by, reason = parts
    return Eviction(int(fence), unquote(reason), unquote(by), int(at_us) / 1e6)


def _who(name: str, text: str, fence: int, since: float, left: float | None) -> Holder:
    host, pid, user, note = ([unquote(part) for part in text.split(":")] + ["unknown"] * 4)[:4]
    return Holder(name, fence, host, int(pid) if pid.isdecimal() else 0, user, note, since, left)
