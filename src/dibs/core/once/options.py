"""What describes one schedule that runs once per slot, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dibs.core.checks import checked_length, checked_options, shown
from dibs.core.lock import Lock
from dibs.errors import Misuse

if TYPE_CHECKING:
    from dibs.core.context import Context
    from dibs.core.once.slots import Schedule, Slot


class OnceOptions(NamedTuple):
    """What describes one schedule, checked."""

    name: str
    schedule: Schedule
    ttl: float
    timeout: float | None
    retries: int
    min_hold: float
    late: float | None
    keep: float
    note: str
    on_lost: str

    def lock(self, context: Context, slot: Slot) -> Lock:
        """The lock under which *slot* runs."""
        note = self.note or f"runs slot {slot.key}"[:200]
        return Lock(context, self.name, self.ttl, None, note, None, self.on_lost)

    def keep_for(self, slot: Slot) -> float:
        """How long the record is kept: at least until this slot is not asked for any more."""
        length = slot.until - slot.at if slot.until is not None and slot.at is not None else 0.0
        return max(self.keep, 2 * length + 86_400.0)


def checked_once(
    name: object,
    schedule: Schedule,
    ttl: object,
    timeout: object,
    retries: object,
    min_hold: object,
    late: object,
    keep: object,
    note: object,
    on_lost: object,
    shortest_ttl: float,
    longest_ttl: float,
) -> OnceOptions:
    """Return the options, or refuse them with `Misuse`."""
    options = checked_options(name, ttl, timeout, note, None, on_lost, shortest_ttl, longest_ttl)
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise Misuse(f"retries={shown(retries)}: it is how often a slot is started again: 0, 1, 2 …")
    return OnceOptions(
        options.name,
        schedule,
        options.ttl,
        options.timeout,
        retries,
        0.0 if min_hold is None else checked_length(min_hold, "min_hold"),
        None if late is None else checked_length(late, "late"),
        checked_length(keep, "keep"),
        options.note,
        options.on_lost,
    )
