"""Renewing the locks of one Redis store: which go out together, what is sent, and why one is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.share import PREFIX
from dibs.stores.redis import values
from dibs.stores.redis.keys import RedisNaming
from dibs.stores.redis.port.command import Argument
from dibs.stores.redis.port.router import Route, ScriptCall
from dibs.stores.redis.scripts import RENEW
from dibs.stores.redis.shares import RedisShares
from dibs.stores.store import Claim, settled

RENEWED_TOGETHER = 100
"""Locks in one call of the script: it stays a short step for the server."""

SAID: dict[int | bytes, LossReason | None] = {
    1: None,
    b"taken": LossReason.TAKEN,
    b"evicted": LossReason.EVICTED,
}
"""What the script says of one lock."""


class RedisRenewals:
    """The renewals of one store."""

    def __init__(self, route: Route, naming: RedisNaming, runtime: Runtime, shares: RedisShares) -> None:
        self._route, self._naming, self._runtime, self._shares = route, naming, runtime, shares

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One script for a hundred locks, one for each share, one write for all."""
        groups = self._grouped(claims)
        requests = [self.request([claims[index] for index in group]) for group in groups]
        answers: list[Any] = [None] * len(claims)
        for group, reply in zip(groups, await self._route.calls(requests, within), strict=True):
            for position, index in enumerate(group):
                answers[index] = reply if isinstance(reply, StoreUnavailable) else SAID[reply[position]]
        return settled(answers)

    def request(self, claims: Sequence[Claim]) -> ScriptCall:
        """The request that extends *claims*, all in one script."""
        if claims[0].token.startswith(PREFIX):
            return self._shares.renewal(claims[0])
        keys, arguments = list[bytes](), list[Argument]()
        for claim in claims:
            own = self._naming.keys(claim.name)
            keys.append(own.lock)
            arguments += [values.ms(claim.ttl), values.longest_ms(claim)]
            arguments += [_grant_of(claim.token, claim.fence), own.evicted]
        return ScriptCall(keys[0], RENEW, RENEW.call(keys, *arguments))

    def _grouped(self, claims: Sequence[Claim]) -> list[list[int]]:
        size = 1 if self._route.map.sharded else RENEWED_TOGETHER
        whole = [index for index, claim in enumerate(claims) if not claim.token.startswith(PREFIX)]
        shares = [[index] for index, claim in enumerate(claims) if claim.token.startswith(PREFIX)]
        return [whole[start : start + size] for start in range(0, len(whole), size)] + shares


def _grant_of(token: str, fence: int) -> str:
    """One grant, as its value begins: the token may have been granted again since, to an ask that came late."""
    return f"{values.quoted(token)}:{fence}"
