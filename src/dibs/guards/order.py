"""What may follow what at a guard: the rule itself, for guards that decide here, and to explain those that do not.

A guard keeps one mark for each name: the highest (epoch, fence, seq) it has been shown. A newer grant is accepted, an
older one never. Within one grant the mark only rises by the numbers that its holder gives its writes, so that a write
that was delayed, or sent twice, does not land on a later one.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.core.checks import checked_fence, checked_name, shown
from dibs.errors import Misuse, StaleFence

SEALED = 2**63 - 1
"""The seq of a grant of which no write is accepted any more."""


class Mark(NamedTuple):
    """The highest that was shown to a guard, or what is shown to it now."""

    epoch: int = 0
    """Raised by hand when the locks move to another store, whose fences may be lower."""
    fence: int = 0
    seq: int = 0
    """The number of a write within its grant; 0 for a claim."""
    digest: str = ""
    """What the write was, to tell the same write sent again from another with the same seq."""

    @property
    def grant(self) -> tuple[int, int]:
        """Of which grant it is."""
        return self.epoch, self.fence


def may_claim(kept: Mark, shown: Mark, *, one_shot: bool) -> bool:
    """Whether a claim is accepted: of a newer grant, or of the same one as long as it goes on."""
    return kept.grant < shown.grant or (kept.grant == shown.grant and kept.seq < SEALED and not one_shot)


def may_write(kept: Mark, shown: Mark, *, one_shot: bool) -> bool:
    """Whether a write is accepted: of a newer grant, or the next of the same one."""
    return kept.grant < shown.grant or (kept[:3] < shown[:3] and not one_shot)


def may_go_on(kept: Mark, shown: Mark) -> bool:
    """Whether nothing newer was there, and the grant was not sealed."""
    return kept.grant < shown.grant or (kept.grant == shown.grant and kept.seq < SEALED)


def claimed(kept: Mark, shown: Mark) -> Mark:
    """The mark after a claim."""
    return kept if kept.grant == shown.grant else shown


def explain(name: str, kept: Mark, shown: Mark) -> None:
    """Raise what a refused write has to be told; return if it is the same write sent again, and was done."""
    again = shown.seq and kept[:3] == shown[:3]
    if again and kept.digest == shown.digest:
        return
    if again:
        raise Misuse(
            f"seq={shown.seq} of {name!r} (fence {shown.fence}) was used for another write, {kept.digest!r}, before "
            f"this, {shown.digest!r}: number the writes of a grant 1, 2, 3, …"
        )
    raise stale(name, kept, shown)


def stale(name: str, kept: Mark, shown: Mark) -> StaleFence:
    """The error of a refused fence."""
    error = StaleFence(name, shown.fence, kept.fence)
    if kept.epoch != shown.epoch:
        error.add_note(f"the guard is in epoch {kept.epoch}, and the fence is of epoch {shown.epoch}")
    return error


def checked_claim(epoch: int, name: object, fence: object) -> tuple[str, Mark]:
    """What a holder shows, if it can be that."""
    return checked_name(name), Mark(epoch, checked_fence(fence))


def checked_write(epoch: int, name: object, fence: object, seq: object, digest: object) -> tuple[str, Mark]:
    """What a holder shows before a write, if it can be that."""
    if isinstance(seq, bool) or not isinstance(seq, int) or not 0 < seq < SEALED:
        raise Misuse(f"seq={shown(seq)}: it is the number of a write within its grant: 1, 2, 3, …")
    if not isinstance(digest, str):
        raise Misuse(f"digest={shown(digest)}: it is text that tells one write from another")
    return checked_name(name), Mark(epoch, checked_fence(fence), seq, digest)


def checked_epoch(epoch: object) -> int:
    """*epoch* if it can be one."""
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < 2**31:
        raise Misuse(f"epoch={shown(epoch)}: it is a whole number from 0, raised by one when the locks move")
    return epoch
