"""What becomes of a name in a memory server while several hold a part of it. Every step is atomic.

Nobody passes the first in line: not a part that would fit where the first, who wants more, does not fit yet; so a
writer is not starved by readers, nor a heavy part by light ones. What is free for the first is kept for it for a
moment; if it does not come, it loses its place, and the next in line is called.
"""

from __future__ import annotations

from dibs.errors import LossReason
from dibs.holder import Holder
from dibs.share import Share, other_slots, share_of
from dibs.stores.memory.port.entry import RESERVED_FOR, TO_SEVERAL, HeldShare, Record, lengthened

Refusal = tuple[Holder | None, float]
"""Who has it, or is before us, and in how many seconds it is worth asking again."""


def refusal(record: Record, name: str, token: str, share: Share, now: float) -> Refusal | None:
    """Why *token* cannot have its *part* now; None if it can. Who let its time pass is struck from the line."""
    _end_what_is_over(record, now)
    if token in record.shares:
        return None
    slots = _slots(record)
    if slots not in (None, share.slots):
        raise other_slots(name, share, slots)
    struck = False
    while (first := next(iter(record.line), token)) != token:
        if not _may_enter(record, first):
            return _holder(record, now), _first_end(record) - now
        left = _kept_until(record, first, now, struck) - now
        if left > 0:
            return record.line[first].who, left
        del record.line[first]
        struck = True
    if not _fits(record, share):
        return _holder(record, now), _first_end(record) - now
    return None


def give(record: Record, who: Holder, token: str, share: Share, now: float, ttl: float) -> int:
    """Grant, or lengthen what *token* has; return the fence. Whoever is next may have room beside it."""
    held = record.shares.get(token)
    if held is None:
        record.line.pop(token, None)
        held = record.shares[token] = HeldShare(who, share, who.fence, 0.0)
        record.token, record.who = TO_SEVERAL, who
    _end_at(record, held, now + ttl)
    call_next(record, now)
    return held.fence


def renew(record: Record, token: str, fence: int, now: float, ttl: float, longest: float) -> LossReason | None:
    """Extend what *token* has, or say why it has nothing."""
    share = record.shares.get(token)
    reason = _why_not_held(record, token, now)
    if share is None or reason is not None or share.fence != fence:
        return reason or LossReason.TAKEN
    _end_at(record, share, lengthened(share.expires_at, now, ttl, longest))
    return None


def release(record: Record, token: str, now: float) -> LossReason | None:
    """Take away what *token* has; who is next has yet to be called."""
    reason = _why_not_held(record, token, now)
    if record.shares.pop(token, None) is not None:
        _settle(record, now)
    return reason


def call_next(record: Record, now: float) -> None:
    """Wake the first in line if there is room for it, once, and keep the room for it."""
    _end_what_is_over(record, now)
    first = next(iter(record.line), None)
    if first is not None and _may_enter(record, first):
        _kept_until(record, first, now, False)


def of_fence(record: Record, fence: int) -> str | None:
    """The token of the part that was granted with *fence*."""
    return next((token for token, share in record.shares.items() if share.fence == fence), None)


def shown(record: Record, now: float) -> tuple[Holder, ...]:
    """All who hold a part, in the order in which they got it."""
    _end_what_is_over(record, now)
    return tuple(share.who._replace(expires_in=share.expires_at - now) for share in record.shares.values())


def _kept_until(record: Record, first: str, now: float, struck: bool) -> float:
    """Until when what is free is kept for the *first* in line, who is called if nobody has called it.

    Who let all of the name go has called the first of then; so that one's time counts from there, unless it was
    *struck* just now.
    """
    if record.kept is None or record.kept[0] != first:
        if record.token is None and not struck:
            return record.free_since + RESERVED_FOR
        record.kept = (first, now + RESERVED_FOR)
        record.line[first].hint()
    return record.kept[1]


def _may_enter(record: Record, token: str) -> bool:
    """Whether it is worth it for *token* to ask; also for one that would be told that it asks for other slots."""
    share = share_of(token)
    if record.token is None or share is None:
        return record.token is None
    return record.token == TO_SEVERAL and (_fits(record, share) or share.slots != _slots(record))


def _fits(record: Record, share: Share) -> bool:
    used = sum(each.share.weight for each in record.shares.values())
    return record.token is None or (record.token == TO_SEVERAL and used + share.weight <= share.slots)


def _slots(record: Record) -> int | None:
    return next((each.share.slots for each in record.shares.values()), None)


def _end_at(record: Record, share: HeldShare, end: float) -> None:
    share.expires_at = end
    record.expires_at = max(share.expires_at for share in record.shares.values())


def _end_what_is_over(record: Record, now: float) -> None:
    for token in [token for token, share in record.shares.items() if share.expires_at <= now]:
        del record.shares[token]
    _settle(record, now)


def _settle(record: Record, now: float) -> None:
    if record.token == TO_SEVERAL and not record.shares:
        record.token, record.free_since = None, min(now, record.expires_at)
    elif record.shares:
        record.expires_at = max(share.expires_at for share in record.shares.values())


def _why_not_held(record: Record, token: str, now: float) -> LossReason | None:
    share = record.shares.get(token)
    if share is not None:
        return None if share.expires_at > now else LossReason.EXPIRED
    return LossReason.EVICTED if record.evicted_token == token else LossReason.TAKEN


def _holder(record: Record, now: float) -> Holder | None:
    held = shown(record, now)
    if held or record.token is None or record.who is None:
        return held[0] if held else None
    return record.who._replace(expires_in=record.expires_at - now)


def _first_end(record: Record) -> float:
    return min((share.expires_at for share in record.shares.values()), default=record.expires_at)
