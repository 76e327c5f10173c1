"""Renewing the locks of one Redis store: which go out together, what is sent, and why one is not held any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.errors import LossReason, StoreUnavailable
from dibs.part import PREFIX
from dibs.ports.redis_route import Request, Route
from dibs.runtime import Runtime
from dibs.stores import redis_values as values
from dibs.stores.redis_keys import Naming
from dibs.stores.redis_parts import Parts
from dibs.stores.redis_scripts import RENEW, WHY_NOT
from dibs.stores.store import Claim, settled

RENEWED_TOGETHER = 100
"""Locks in one call of the script: it stays a short step for the server."""


class Renewals:
    """The renewals of one store."""

    def __init__(self, route: Route, naming: Naming, runtime: Runtime, parts: Parts) -> None:
        self._route, self._naming, self._runtime, self._parts = route, naming, runtime, parts

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One script for a hundred locks, one for each part, one write for all."""
        groups = self._grouped(claims)
        requests = [self.request([claims[index] for index in group]) for group in groups]
        until = self._runtime.now() + within
        answers: list[Any] = [None] * len(claims)
        for group, reply in zip(groups, await self._route.calls(requests, within), strict=True):
            for place, index in enumerate(group):
                answers[index] = reply if isinstance(reply, StoreUnavailable) else reply[place]
        lost = [index for index, answer in enumerate(answers) if answer == 0]
        for index, why in zip(lost, await self._why_not([claims[i] for i in lost], until), strict=True):
            answers[index] = why
        return settled([None if answer == 1 else answer for answer in answers])

    def request(self, claims: Sequence[Claim]) -> Request:
        """What extends *claims*, which go together."""
        if claims[0].token.startswith(PREFIX):
            return self._parts.renewal(claims[0])
        keys = [self._naming.keys(claim.name).lock for claim in claims]
        arguments = [part for claim in claims for part in (values.ms(claim.ttl), _grant_of(claim.token, claim.fence))]
        return Request(keys[0], RENEW, RENEW.call(keys, *arguments))

    def _grouped(self, claims: Sequence[Claim]) -> list[list[int]]:
        size = 1 if self._route.map.sharded else RENEWED_TOGETHER
        whole = [index for index, claim in enumerate(claims) if not claim.token.startswith(PREFIX)]
        parts = [[index] for index, claim in enumerate(claims) if claim.token.startswith(PREFIX)]
        return [whole[start : start + size] for start in range(0, len(whole), size)] + parts

    async def _why_not(self, claims: Sequence[Claim], until: float) -> list[Any]:
        if not claims:
            return []
        requests = []
        for claim in claims:
            evicted = self._naming.keys(claim.name).evicted
            requests.append(Request(evicted, WHY_NOT, WHY_NOT.call((evicted,), values.quoted(claim.token))))
        replies = await self._route.calls(requests, max(0.05, until - self._runtime.now()))
        return [LossReason.EVICTED if reply == b"evicted" else LossReason.TAKEN for reply in replies]


def _grant_of(token: str, fence: int) -> str:
    """One grant, as its value begins: the token may have been granted again since, to an ask that came late."""
    return f"{values.quoted(token)}:{fence}"
