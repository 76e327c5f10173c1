"""Asks that were sent and never answered: each may still be carried out, after everything that was sent later.

A closed connection does not prevent that. The kernel goes on sending what was written to a socket for minutes after
it was closed, and a proxy may have read it already. So when a token with such an ask is given back, the store leaves a
mark for the token at the server, and the server refuses the ask if it still arrives.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from dibs.errors import Misuse, OutcomeUnknown, StoreUnavailable

T = TypeVar("T")

MARKED_FOR = 180.0
"""Seconds for which a server refuses a late ask. Linux goes on sending for a closed socket for about 100 s."""

MOST = 4096
"""Tokens that are remembered; the oldest are forgotten."""


class Doubts(dict[str, None]):
    """The tokens with an ask that was not answered, until they are given back. To look for one is cheap."""

    __slots__ = ()

    def failed(self, token: str, error: BaseException) -> None:
        """Note that an ask of *token* ended with *error*: a cancel, Ctrl-C, or a failure of server or network."""
        if isinstance(error, OutcomeUnknown) or not isinstance(error, StoreUnavailable | Misuse):
            if len(self) >= MOST:
                self.pop(next(iter(self)), None)
            self[token] = None

    async def of(self, token: str, answer: Awaitable[T]) -> T:
        """Return the *answer* to an ask of *token*; if none comes, note that."""
        try:
            return await answer
        except BaseException as error:
            self.failed(token, error)
            raise

    def settled(self, token: str) -> None:
        """Forget *token*: the server has the mark."""
        self.pop(token, None)
