"""What a memory server keeps of one name: who holds it, all of it or a part, and who waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dibs.holder import Eviction, Holder
from dibs.share import Share

RESERVED_FOR = 0.1
"""Seconds for which a lock that was let go is kept for the first in line; then anyone may take it."""

TO_SEVERAL = "several"
"""In the place of a token: several hold a part each, so whoever wants all of it sees that it is taken."""

Wake = Callable[[], None]

NOTHING_COMES: tuple[None, float] = (None, 0.1)
"""The refusal of an ask that was given back before it came; nobody waits for the answer."""


def lengthened(end: float, now: float, ttl: float, longest: float) -> float:
    """The end of a grant that is renewed: not sooner than before, and not farther away than *longest*."""
    return min(max(end, now + ttl), now + longest)


@dataclass(slots=True)
class Ticket:
    """A place in the line for one name."""

    who: Holder
    hinted: bool = False
    wake: Wake | None = None

    def hint(self) -> None:
        """It is worth asking again. A hint never grants."""
        self.hinted = True
        if self.wake is not None:
            self.wake()


@dataclass(slots=True)
class HeldShare:
    """What one holder has of a name that several hold."""

    who: Holder
    share: Share
    fence: int
    expires_at: float


@dataclass(slots=True)
class Record:
    """One name: never removed, since the fence outlives every grant."""

    fence: int = 0
    token: str | None = None
    expires_at: float = 0.0
    free_since: float = float("-inf")
    who: Holder | None = None
    line: dict[str, Ticket] = field(default_factory=dict)
    evicted: Eviction | None = None
    evicted_token: str = ""
    shares: dict[str, HeldShare] = field(default_factory=dict)
    """By token, while *token* is `TO_SEVERAL`: then *expires_at* is the end of the last of them."""
    kept: tuple[str, float] | None = None
    """For whom what is free of it is kept, and until when."""
    marks: dict[str, float] = field(default_factory=dict)
    """Tokens that were given back while an ask of theirs may still come, and until when that is refused."""

    def refuses(self, token: str, now: float) -> bool:
        """Whether an ask of *token* is refused, since it was given back."""
        if not self.marks:
            return False
        self.marks = {marked: until for marked, until in self.marks.items() if until > now}
        return token in self.marks
