"""Asks that were sent and never answered: each may still be carried out, after everything that was sent later.

A closed connection does not prevent that. The kernel goes on sending what was written to a socket for minutes after
its end, and a proxy may have read it already. So a store that is asked to give back a token of which it has such an
ask leaves a mark for the token at the server, and the server refuses the ask if it still comes.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from dibs.errors import Misuse, OutcomeUnknown, StoreUnavailable

T = TypeVar("T")

MARKED_FOR = 180.0
"""Seconds for which a server refuses what comes too late. Linux sends for a closed socket for about 100 s."""

MOST = 4096
"""Tokens that are remembered; the oldest are forgotten."""


class Doubts(dict[str, None]):
    """The tokens of one store that such asks were sent for, until they are given back; to look for one is cheap."""

    __slots__ = ()

    def failed(self, token: str, error: BaseException) -> None:
        """An ask of *token* ended with *error*: a cancel, Ctrl-C, or what the server or the network made of it."""
        if isinstance(error, OutcomeUnknown) or not isinstance(error, StoreUnavailable | Misuse):
            if len(self) >= MOST:
                self.pop(next(iter(self)), None)
            self[token] = None

    async def of(self, token: str, answer: Awaitable[T]) -> T:
        """Return the *answer* to an ask of *token*; if there is none, that is noted."""
        try:
            return await answer
        except BaseException as error:
            self.failed(token, error)
            raise

    def settled(self, token: str) -> None:
        """The server has the mark."""
        self.pop(token, None)
