"""The records of the Redis store: one more key in the slot of each lock, which the server forgets by itself.

The value of the key is ``FENCE:TOKEN:WRITTEN_AT:NAME:DATA``. The scripts are those of the lock with a few lines before
them, so that a look and a grant, or a record and a release, are one step. A name that is only ever asked for in this
way does not keep its fence for ever: one for each request would fill the memory. It is kept for a day, or as long as
the record; the server's clock has passed it by then.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from dibs.errors import LossReason, OutcomeUnknown
from dibs.holder import Record, here
from dibs.runtime import Runtime
from dibs.stores.record_store import latest
from dibs.stores.redis import values
from dibs.stores.redis.keys import RedisNaming
from dibs.stores.redis.port.command import Script, command
from dibs.stores.redis.port.errors import refused
from dibs.stores.redis.port.router import Route, keys_of
from dibs.stores.redis.scripts import GRANT, RELEASE, WHY_NOT, hinting
from dibs.stores.store import Ask, Claim

FENCE_MS = 86_400_000
"""The last fence of a name that keeps records is remembered for at least this long."""


def _with(script: Script, **changes: tuple[str, str]) -> str:
    """The text of *script* with some lines changed, which have to be there."""
    text = script.text
    for old, new in changes.values():
        assert old in text, old
        text = text.replace(old, new)
    return text


_SET_FENCE = """if lasting then call('SET', fence, next) else
call('SET', fence, next, 'PX', string.format('%.0f', ttl + {FENCE_MS})) end"""

GRANT_UNLESS_RECORDED = Script(
    """
local left = redis.call('GET', KEYS[5])
local after = tonumber(string.match(ARGV[1], '^%d+ (%d+)'))
if left and (tonumber(string.match(left, '^%d+')) or 0) > after then
  return {'recorded', left, redis.call('PTTL', KEYS[5])}
end
local lasting = redis.call('PTTL', KEYS[2]) == -1
"""
    + _with(
        GRANT,
        ttl=("string.match(ARGV[1], '^(%d+) (.*)$')", "string.match(ARGV[1], '^(%d+) %d+ (.*)$')"),
        token=(
            "local facts, token = ARGV[2], ARGV[3]",
            "local token, facts = string.match(ARGV[2], '^(%S+) (.*)$')",
        ),
        fence=("call('SET', fence, next)", _SET_FENCE.replace("{FENCE_MS}", str(FENCE_MS))),
    )
)
"""lock fence queue tickets record; ttl, fence and channel; token and facts. Ten words, as the grant itself."""

_WRITE = f"""
{WHY_NOT}
local held, token, data = redis.call('GET', KEYS[1]), ARGV[1], ARGV[4]
local mine = ARGV[2] .. ':' .. token .. ':'
local start = 'dibs:' .. token .. ':' .. ARGV[2] .. ':'
if not held or string.sub(held, 1, #start) ~= start then
  local left = redis.call('GET', KEYS[5])
  local same = left and string.sub(left, 1, #mine) == mine
  if same and string.sub(left, string.find(left, ':', #mine + 1, true) + 1) == data then return 'held' end
  return why_not(KEYS[4], token)
end
local clock = redis.call('TIME')
local at = string.format('%.0f', clock[1] * 1000000 + clock[2])
if redis.call('PTTL', KEYS[6]) ~= -1 then
  redis.call('PEXPIRE', KEYS[6], string.format('%.0f', math.max(ARGV[3], {FENCE_MS})))
end
redis.call('SET', KEYS[5], mine .. at .. ':' .. data, 'PX', ARGV[3])
"""

REMEMBER = Script(f"{_WRITE}\nreturn 'held'")
"""lock queue tickets evicted record fence; token, fence, ms, name and data."""

FINISH = Script(_WRITE + RELEASE.text)
"""Writes the record as REMEMBER does, and gives the lock back. Keys and arguments are those of REMEMBER."""

LOOK = Script("return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}")
"""record. Answers with its value and its ttl."""

CLOCK = Script("return redis.call('TIME')")
"""lock, so that it is asked where the lock is."""

FORGET = Script("""
local left = redis.call('GET', KEYS[1])
if not left or string.match(left, '^(%d+):') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
""")
"""record; fence. Deletes the record if it is still that of *fence*."""


class RedisRecords:
    """The steps of one store that write and read records."""

    def __init__(self, route: Route, naming: RedisNaming, runtime: Runtime, min_replicas: int, shown: str) -> None:
        self._route, self._naming, self._runtime = route, naming, runtime
        self._min_replicas, self._shown = min_replicas, shown
        self._finish = hinting(FINISH, sharded=route.map.sharded)

    async def grant(self, ask: Ask, after: int, channel: bytes, within: float) -> Any:
        """Send the ask; the answer as it comes: a record, or what the script of the lock says."""
        keys = self._naming.keys(ask.name)
        who = values.facts(here(self._runtime.pid(), ask.name, ask.note))
        data = GRANT_UNLESS_RECORDED.call(
            (keys.lock, keys.fence, keys.queue, keys.tickets, keys.record),
            b"%d %d %b" % (values.ms(ask.ttl), after, channel),
            f"{values.quoted(ask.token)} {who}",
        )
        reply = await self._route.call(keys.lock, GRANT_UNLESS_RECORDED, data, within)
        if reply.__class__ is list and reply[0] == b"recorded":
            return _read(reply[1], reply[2])
        return reply

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Write the record, if the claim still holds its lock."""
        return await self._write(REMEMBER, claim, data, keep, within)

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Write the record and give the lock back, in one step."""
        return await self._write(self._finish, claim, data, keep, within)

    async def record(self, name: str, within: float) -> Record | None:
        """The record of *name*; None if there is none, or another program wrote it."""
        key = self._naming.keys(name).record
        value, left = await self._route.call(key, LOOK, LOOK.call((key,)), within)
        return _read(value, left) if value is not None else None

    async def time(self, name: str, within: float) -> float:
        """The clock of the node that keeps *name*, in seconds since 1970."""
        key = self._naming.keys(name).lock
        seconds, micros = await self._route.call(key, CLOCK, CLOCK.call((key,)), within)
        return int(seconds) + int(micros) / 1e6

    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        """The latest *most* records of names that begin with *prefix*, found by scanning the keys."""
        found = await self._route.scan(self._naming.records(prefix), within)
        pairs = ((key, _read(value, left)) for key, (value, left, _) in found.items() if left > 0 and value is not None)
        ours = (each for key, each in pairs if each is not None and self._naming.keys(each.name).record == key)
        return latest((each for each in ours if each.name.startswith(prefix)), most)

    async def forget(self, name: str, fence: int, within: float) -> bool:
        """Delete the record of *name* if its fence is *fence*; tell whether it was there."""
        key = self._naming.keys(name).record
        return bool(await self._route.call(key, FORGET, FORGET.call((key,), fence), within))

    async def _write(self, script: Script, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        keys = self._naming.keys(claim.name)
        content = quote(claim.name, safe="").encode() + b":" + data
        call = script.call(
            (keys.lock, keys.queue, keys.tickets, keys.evicted, keys.record, keys.fence),
            *(values.quoted(claim.token), claim.fence, values.ms(keep), content),
        )
        if self._min_replicas:
            return await self._confirmed(keys.lock, script.in_full(call), within)
        return values.ANSWERS[await self._route.call(keys.lock, script, call, within)]

    async def _confirmed(self, key: bytes, call: bytes, within: float) -> LossReason | None:
        """Wait until enough replicas know it. Otherwise it is there all the same, but not as safe as asked for."""
        wait = command("WAIT", self._min_replicas, max(1, int(within * 500)))
        reply, known = await self._route.pipeline(key, [call, wait], within)
        if isinstance(reply, Exception):
            raise refused(self._shown, reply, keys_of(call))
        if not isinstance(known, int) or known < self._min_replicas:
            raise OutcomeUnknown(
                self._shown,
                f"{known} of {self._min_replicas} replicas confirmed the record, which the server itself has",
            )
        return values.ANSWERS[reply]


def _read(value: bytes, left_ms: int) -> Record | None:
    """The record in the value of a key; None if another program wrote it."""
    parts = value.split(b":", 4)
    if len(parts) != 5 or not (parts[0].isdigit() and parts[2].isdigit()):
        return None
    name = unquote(parts[3].decode("utf-8", "replace"))
    return Record(name, int(parts[0]), parts[4], int(parts[2]) / 1e6, left_ms / 1000)
