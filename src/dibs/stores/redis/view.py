"""What people are shown of Redis: who holds which names, who waits, and the last eviction."""

from __future__ import annotations

from dibs.errors import StoreUnavailable
from dibs.holder import Holder, LockState
from dibs.stores.redis import values
from dibs.stores.redis.keys import RedisNaming
from dibs.stores.redis.port.router import Route
from dibs.stores.redis.scripts import SHOW
from dibs.stores.redis.shares import sharing


class RedisView:
    """Reads one namespace, for people."""

    def __init__(self, route: Route, naming: RedisNaming) -> None:
        self._route, self._naming = route, naming

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """The holders of all names that begin with *prefix*, found by scanning the keys."""
        found = list[Holder]()
        for key, (value, left, now_us) in (await self._route.scan(self._naming.pattern(prefix), within)).items():
            name = self._naming.name(key)
            foreign = value is None or values.read_value(value) is None
            if name is None or left == values.GONE or (self._naming.raw and foreign):
                continue  # not ours; gone meanwhile; other data, where we share the keys of a program
            if value is None:
                found.append(values.no_string(name, key, now_us))
            elif value.startswith(values.SEVERAL):
                found += await self._sharing(name, within) or [values.holder(name, key, value, now_us, left)]
            else:
                found.append(values.holder(name, key, value, now_us, left))
        return sorted(found)

    async def _sharing(self, name: str, within: float) -> list[Holder]:
        """The holders that share *name*; none if another program has put something there that we cannot read."""
        try:
            return list((await self.show(name, within)).sharing)
        except StoreUnavailable as error:
            if "WRONGTYPE" in error.problem:
                return []
            raise

    async def show(self, name: str, within: float) -> LockState:
        """All that is known of *name*, by one script."""
        keys = self._naming.keys(name)
        reply = await self._route.call(keys.lock, SHOW, SHOW.call(keys), within)
        now_text, value, left, fence, queue, tickets, evicted, ends, shares = reply
        now_us, facts = int(now_text), dict(zip(tickets[::2], tickets[1::2], strict=True))
        waiting = [
            values.waiting(name, facts[token], since, token)
            for token, since in zip(queue[::2], queue[1::2], strict=True)
            if token in facts and values.still_counts(facts[token], now_us)
        ]
        several = sharing(name, now_us, ends, shares) if value and value.startswith(values.SEVERAL) else ()
        holder = None if value is None else values.holder(name, keys.lock, value, now_us, left)
        last = int(fence) if fence and values.is_number(fence) else 0
        return LockState(
            name, last, several[0] if several else holder, tuple(waiting), values.eviction(evicted), sharing=several
        )
