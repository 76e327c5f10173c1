"""A guard in Redis, where the data is in Redis: one script compares the fence and does the write.

A transaction of Redis cannot look at what it read before it writes; a script can. Fences are compared as text, first
by length: Lua has no whole numbers above 2^53.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dibs.errors import Misuse
from dibs.guards.order import SEALED, Mark, checked_claim, checked_epoch, checked_write, explain, stale
from dibs.ports.db.sync_or_async import Opened, method_on

_ORDER = f"""
local function less(a, b) return #a < #b or (#a == #b and a < b) end
local kept = redis.call('HMGET', KEYS[1], 'epoch', 'fence', 'seq', 'digest')
local mark = {{kept[1] or '0', kept[2] or '0', kept[3] or '0', kept[4] or ''}}
local epoch, fence, seq, digest, one_shot = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local newer = less(mark[1], epoch) or (mark[1] == epoch and less(mark[2], fence))
local same = mark[1] == epoch and mark[2] == fence
local open = same and mark[3] ~= '{SEALED}'
local function raise(seq, digest)
  redis.call('HSET', KEYS[1], 'epoch', epoch, 'fence', fence, 'seq', seq, 'digest', digest)
end
"""

CLAIM = f"""{_ORDER}
if newer then raise('0', '') elseif one_shot or not open then return mark end
return 'yes'
"""

CHECK = f"""{_ORDER}
return (newer or open) and 'yes' or mark
"""

SEAL = f"""{_ORDER}
if not newer and not open then return mark end
raise('{SEALED}', '')
return 'yes'
"""

WRITE = f"""{_ORDER}
local numbered = seq ~= '0'
local next = open and not one_shot and (not numbered or less(mark[3], seq))
if not newer and not next then return mark end
local command = {{}}
for i = 6, #ARGV do command[i - 5] = ARGV[i] end
local answer = redis.pcall(unpack(command))
if type(answer) == 'table' and answer.err then return redis.error_reply(answer.err) end
if newer or numbered then raise(seq, digest) end
return 'yes'
"""
"""A command that fails has changed nothing, and then the mark is not raised either."""


class Scripts(Opened):
    """A client of redis-py, of either colour, as something that runs scripts."""

    def __init__(self, client: Any) -> None:
        if not any(each.__module__.partition(".")[0] == "redis" for each in type(client).__mro__):
            raise Misuse(
                f"{type(client).__qualname__} is no client of redis-py, such as redis.Redis or redis.asyncio's"
            )
        self._client = client
        self.blocking = not any(each.__module__.startswith("redis.asyncio") for each in type(client).__mro__)

    async def answer(self, script: str, keys: Sequence[str], values: Sequence[object]) -> Mark | None:
        """Run it: None for a yes, else the mark that is in the way."""
        found = self._client.eval(script, len(keys), *keys, *values)
        if inspect.isawaitable(found):
            found = await found
        if not isinstance(found, list):
            return None
        epoch, fence, seq, digest = (each.decode() if isinstance(each, bytes) else each for each in found)
        return Mark(int(epoch), int(fence), int(seq), digest)


class RedisGuard:
    """Guards data in Redis: ``guard.write(client, name, fence, ["SET", "balance:42", 90])``.

    *client* is one of redis-py; with one of ``redis.asyncio`` each call is awaited. The mark of a name is a hash at
    *key* of it. In a cluster that key and the data's must be in one slot: ``key=lambda name: "guard:{" + name + "}"``.

    Where Redis may evict keys, or forgets the guard and not the data, a stale fence is accepted again: keep guards
    under ``noeviction``. *one_shot* and *epoch* are those of `TableGuard`.
    """

    def __init__(
        self,
        *,
        key: Callable[[str], str] = lambda name: f"dibs:guard:{name}",
        one_shot: bool = False,
        epoch: int = 0,
    ) -> None:
        self._key, self._one_shot, self._epoch = key, one_shot, checked_epoch(epoch)

    @method_on(Scripts)
    async def claim(self, client: Scripts, name: str, fence: int) -> None:
        """Refuse all older fences of *name* from now on; `StaleFence` if this is one."""
        name, shown = checked_claim(self._epoch, name, fence)
        kept = await self._answer(client, CLAIM, name, shown)
        if kept is not None:
            raise stale(name, kept, shown)

    @method_on(Scripts)
    async def write(
        self,
        client: Scripts,
        name: str,
        fence: int,
        command: Sequence[object],
        *,
        seq: int | None = None,
        digest: str = "",
    ) -> bool:
        """Do *command*, whose second word is its key, unless *fence* is stale: `StaleFence`. One script does both.

        With *seq*, the number of the write within its grant, a repeat is recognised: False, and nothing is done.
        """
        name, shown = checked_write(self._epoch, name, fence, 1 if seq is None else seq, digest)
        if len(command) < 2:
            raise Misuse(
                f"command={command!r}: it is a command of Redis and its arguments, the first of which is a key"
            )
        shown = shown._replace(seq=seq or 0)
        kept = await self._answer(client, WRITE, name, shown, command)
        if kept is not None:
            explain(name, kept, shown)
        return kept is None

    @method_on(Scripts)
    async def check(self, client: Scripts, name: str, fence: int) -> None:
        """Raise `StaleFence` if a newer fence was here: for what was read, before it is shown to anybody."""
        name, shown = checked_claim(self._epoch, name, fence)
        kept = await self._answer(client, CHECK, name, shown)
        if kept is not None:
            raise stale(name, kept, shown)

    @method_on(Scripts)
    async def seal(self, client: Scripts, name: str, fence: int) -> bool:
        """Refuse *fence* as well from now on; tell whether it was not refused anyway."""
        name, shown = checked_claim(self._epoch, name, fence)
        return await self._answer(client, SEAL, name, shown) is None

    def on(self, client: Any) -> OnClient:
        """This guard with that client, for ``lock.guarded(guard.on(client))``."""
        return OnClient(self, client)

    def __repr__(self) -> str:
        return f"<RedisGuard {self._key('…')}>"

    async def _answer(
        self, client: Scripts, script: str, name: str, shown: Mark, command: Sequence[object] = ()
    ) -> Mark | None:
        keys = [self._key(name), *(str(word) for word in command[1:2])]
        return await client.answer(script, keys, [*shown, int(self._one_shot), *command])


class OnClient:
    """As `RedisGuard.on` returns it, for `Lock.guarded`."""

    __slots__ = ("_client", "_guard")

    def __init__(self, guard: RedisGuard, client: Any) -> None:
        self._guard, self._client = guard, client

    @property
    def blocking(self) -> bool:
        """Whether the client is for blocking code."""
        return Scripts(self._client).blocking

    def claim(self, name: str, fence: int) -> Awaitable[object] | object:
        """Claim; to be awaited if the client is for async code."""
        done: object = self._guard.claim(self._client, name, fence)
        return done

    def seal(self, name: str, fence: int) -> Awaitable[object] | object:
        """Seal."""
        done: object = self._guard.seal(self._client, name, fence)
        return done
