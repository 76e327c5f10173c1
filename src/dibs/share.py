"""What a shared lock or a semaphore takes of a name. Whoever takes no part takes all of it.

A name has a number of slots, and each holder has some of them: its weight. A shared lock takes one of more slots than
there can be holders, a semaphore so many of so many, an exclusive lock all. Who holds a part has a lease of its own,
with its own token, fence, renewal and loss.

The token says which part it stands for. So whoever queues, renews, hands over or gives back by token alone, here or in
a store, knows what it is about; and a store that looks at no token gives all of the name to one at a time, which is
less than was wished for, and safe.
"""

from __future__ import annotations

from typing import NamedTuple

from dibs.errors import Misuse

PREFIX = "part-"
"""What the token of a part begins with; no other token does."""

UNBOUNDED = 2**31 - 1
"""The slots of a name that is shared: more than there can be holders."""

MOST_SLOTS = 1_000_000
"""What a semaphore can have."""


class Share(NamedTuple):
    """So many of so many slots."""

    weight: int
    slots: int

    def token(self, secret: str) -> str:
        """The token of an ask for this part; *secret* is what nobody can guess."""
        return f"{PREFIX}{self.weight}of{self.slots}-{secret}"

    @property
    def shown(self) -> str:
        """In words, as `Holder.share` has it."""
        return "shared" if self.slots == UNBOUNDED else f"{self.weight} of {self.slots} slots"


SHARED = Share(1, UNBOUNDED)
"""What a shared lock takes."""


def share_of(token: str) -> Share | None:
    """The part that *token* stands for; None if it stands for the whole name."""
    if not token.startswith(PREFIX):
        return None
    weight, _, slots = token[len(PREFIX) :].partition("-")[0].partition("of")
    return Share(int(weight), int(slots)) if weight.isdecimal() and slots.isdecimal() else None


def shown_share(token: str) -> str:
    """What `Holder.share` is for *token*."""
    share = share_of(token)
    return "" if share is None else share.shown


def other_slots(name: str, asked: Share, slots: int) -> Misuse:
    """The refusal of an ask for a name whose holders have parts of another size."""
    return Misuse(f"{name!r} is asked for as {_kind(asked.slots)}, and is held as {_kind(slots)}: use another name")


def _kind(slots: int) -> str:
    return "a shared lock" if slots == UNBOUNDED else f"a semaphore of {slots} slots"
