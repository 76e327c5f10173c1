"""What a memory server keeps of one name: who holds it, all of it or a part, and who waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dibs.holder import Eviction, Holder
from dibs.part import Part

RESERVED_FOR = 0.1
"""Seconds for which a lock that was let go is kept for the first in line; then anyone may take it."""

TO_SEVERAL = "several"
"""In the place of a token: several hold a part each, so whoever wants all of it sees that it is taken."""

Wake = Callable[[], None]


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
class Share:
    """What one holder has of a name that several hold."""

    who: Holder
    part: Part
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
    shares: dict[str, Share] = field(default_factory=dict)
    """By token, while *token* is `TO_SEVERAL`: then *expires_at* is the end of the last of them."""
    kept: tuple[str, float] | None = None
    """For whom what is free of it is kept, and until when."""
