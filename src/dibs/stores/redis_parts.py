"""Parts of a name in Redis: how several hold it at once, and what becomes of each of them.

While several hold it, the key of the lock has the value ``dibs.several:PART:FENCE:SINCE:FACTS``, of whoever came last,
and expires with the last of their leases. So whoever wants all of it, also with a plain ``SET key value NX PX``, is
kept out by the command that keeps it out of any lock. Who holds a part stands in a sorted set, by the end of its lease
in ms, and in a hash, as ``FENCE:SINCE:FACTS``; the field ``@`` of the hash is how many slots are taken in all. Both are
void when the key has another value. Which part a token stands for is written in it.

The line is that of the lock. Its field ``#`` says until when what is free is kept for the first in it, while several
hold the name; for a name that is free, ``@`` says since when it is, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.errors import LossReason
from dibs.holder import Holder, here
from dibs.ports.redis_command import Script
from dibs.ports.redis_route import Request, Route
from dibs.runtime import Runtime
from dibs.stores import redis_values as values
from dibs.stores.redis_keys import Naming
from dibs.stores.redis_scripts import EVICTED_MS, HIGHEST_FENCE, LINE, NOW, RESERVED_FOR_MS, SEVERAL, TICKET_MS, hinting
from dibs.stores.store import Ask, Claim

AFTERWARDS_MS = 5_000
"""For so long the two keys outlive the key of the lock: they never end before it."""

_PARTS = f"""
local lock, line, tickets, evicted, ends, parts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
{NOW}{LINE}
local now_ms = math.floor(now / 1000)
local value = redis.call('GET', lock)
local several = value and {SEVERAL.format("value")}
local used, slots = 0, nil  -- how many slots are taken, and of how many
redis.call('ZCARD', line)  -- these only to fail here, before the first write, if they are of another kind
redis.call('HLEN', tickets)
redis.call('ZCARD', ends)
redis.call('HLEN', parts)
local function size(token)  -- none for one who wants all
  local weight, of = string.match(token, '^part%-(%d+)of(%d+)%-')
  return tonumber(weight), tonumber(of)
end
local function leave(token)
  redis.call('HDEL', parts, token)
  redis.call('ZREM', ends, token)
  used = redis.call('HINCRBY', parts, '@', string.format('%d', -size(token)))
end
local function settle()  -- the key ends with the last of them, or now
  local last = redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')
  if last[1] then
    local left = tonumber(last[2]) - now_ms + 1
    redis.call('PEXPIRE', lock, text(left))
    redis.call('PEXPIRE', ends, text(left + {AFTERWARDS_MS}))
    redis.call('PEXPIRE', parts, text(left + {AFTERWARDS_MS}))
    return true
  end
  redis.call('DEL', lock, ends, parts)
  several, used, slots = false, 0, nil
end
if several then
  used = tonumber(redis.call('HGET', parts, '@') or '0')
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', text(now_ms))) do leave(gone) end
  local one = redis.call('ZRANGE', ends, 0, 0)[1]
  if one then slots = select(2, size(one)) else settle() end
end
local function fits(weight, of) return not several or (of == slots and used + weight <= slots) end
local function may_enter(token)  -- also one who would be told that it asks for other slots
  local weight, of = size(token)
  return not several or (weight and (of ~= slots or fits(weight, of)))
end
local function kept_for(token)
  local moment, whose = string.match(redis.call('HGET', tickets, '#') or '', '^(%d+) (.*)$')
  return whose == token and tonumber(moment)
end
local function keep_for(token)
  local moment = now + {RESERVED_FOR_MS}000
  redis.call('HSET', tickets, '#', text(moment) .. ' ' .. token)
  return moment
end
local function is_gone(token)  -- its client does not listen any more, so it would keep what is free from all behind it
  local ticket = redis.call('HGET', tickets, token)
  local channel = string.match(ticket or '', '^%d+ (%S*) ')
  if until_of(ticket) <= now then return true end
  return channel and channel ~= '' and redis.pcall('PUBLISH', channel, 'soon -') == 0  -- nobody's token: only to ask
end
local function call_next()  -- who is first, if there is room for it, and nobody has called it
  local ahead = first()
  while ahead and not may_enter(ahead) and is_gone(ahead) do
    drop(ahead)
    ahead = first()
  end
  while ahead and may_enter(ahead) and not kept_for(ahead) do
    keep_for(ahead)
    hint()
    if first() == ahead then break end
    ahead = first()
  end
end
local function freed()  -- by one of several
  if settle() then call_next() else set_free() end
end
"""

GRANT = Script(f"""
{_PARTS}
local fence, facts, token = KEYS[7], ARGV[2], ARGV[3]
local ttl, channel = string.match(ARGV[1], '^(%d+) (.*)$')
local weight, of = size(token)
local last = redis.call('GET', fence)
local until_ms = now_ms + tonumber(ttl)
local function extend()
  local before = tonumber(redis.call('ZSCORE', ends, token) or '0')
  redis.call('ZADD', ends, text(math.max(before, until_ms)), token)
  settle()
end
if several and redis.call('ZSCORE', ends, token) then
  extend()
  return string.match(redis.call('HGET', parts, token), '^%d+')
end
if several and of ~= slots then return {{'slots', text(slots)}} end
local function join(free_at)
  if channel == '-' then return end
  if not redis.call('ZSCORE', line, token) then
    local newest = tonumber(redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2]) or 0
    redis.call('ZADD', line, text(math.max(now, newest + 1)), token)
  end
  redis.call('HSET', tickets, token, text(now + {TICKET_MS}000) .. ' ' .. channel .. ' ' .. facts, '@', text(free_at))
  redis.call('PEXPIRE', line, {TICKET_MS + 5000})
  redis.call('PEXPIRE', tickets, {TICKET_MS + 5000})
end
local next = math.max((tonumber(last or '0') or 2^53) + 1, now)
if next > {HIGHEST_FENCE} then return {{'exhausted', last}} end
if value and not several and redis.call('EXISTS', lock) == 1 then
  local left = redis.call('PTTL', lock)
  if left < 0 then return {{'immortal'}} end
  join(now + left * 1000)
  return {{'held', left, text(now), value}}
end
local ahead, struck = first(), false
while ahead and ahead ~= token do
  local ticket = redis.call('HGET', tickets, ahead)
  if until_of(ticket) <= now or (not may_enter(ahead) and is_gone(ahead)) then
    drop(ahead)
  elseif not may_enter(ahead) then
    break
  else
    local kept, free_at = kept_for(ahead), now
    if not kept and not several and not struck then  -- whoever freed all of it has called the first
      free_at = math.min(tonumber(redis.call('HGET', tickets, '@') or '0') or now, now)
      redis.call('HSET', tickets, '@', text(free_at))
      kept = free_at + {RESERVED_FOR_MS}000
    end
    if not kept then
      call_next()
      kept = kept_for(ahead) or now
    end
    if kept > now then
      local since = redis.call('ZSCORE', line, ahead)
      join(free_at)
      return {{'kept', math.ceil((kept - now) / 1000), text(now), since, ticket}}
    end
    if first() == ahead then drop(ahead) end  -- it let its time pass, or could not be called
    struck = true
  end
  ahead = first()
end
if (ahead and ahead ~= token) or not fits(weight, of) then
  local soonest = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')
  join(now + redis.call('PTTL', lock) * 1000)
  return {{'held', tonumber(soonest[2]) - now_ms, text(now), value}}
end
drop(token)
tidy()
if not several then redis.call('DEL', ends, parts) end  -- of those who held parts before somebody removed the key
next = text(next)
local told = next .. ':' .. text(now) .. ':' .. facts
value = 'dibs.several:part-' .. weight .. 'of' .. of .. '-:' .. told
redis.call('SET', lock, value, 'PX', ttl)
redis.call('SET', fence, next)
redis.call('HSET', parts, token, told)
used = redis.call('HINCRBY', parts, '@', string.format('%d', weight))
several, slots = true, of
extend()
call_next()
return next
""")
"""lock line tickets evicted ends parts fence; ttl and channel, facts, token: as those of the grant of a lock."""

RELEASE = Script(f"""
{_PARTS}
local token = ARGV[1]
local held = several and redis.call('ZSCORE', ends, token)
local gone = redis.call('GET', evicted)
local waited = drop(token) == 1
if held then leave(token) end
if several then freed() elseif waited and redis.call('EXISTS', lock) == 0 then hint() end
tidy()
if held then return 'held' end
return gone and string.sub(gone, 1, #token + 1) == token .. ':' and 'evicted' or 'taken'
""")
"""lock line tickets evicted ends parts; token."""

EVICT = Script(f"""
{_PARTS}
if not several then return 0 end
for _, token in ipairs(redis.call('ZRANGE', ends, 0, -1)) do
  if string.match(redis.call('HGET', parts, token) or '', '^%d+') == ARGV[1] then
    leave(token)
    redis.pcall('SET', evicted, token .. ':' .. ARGV[1] .. ':' .. text(now) .. ':' .. ARGV[2], 'PX', {EVICTED_MS})
    freed()
    tidy()
    return 1
  end
end
return 0
""")
"""lock line tickets evicted ends parts; fence, who and why."""

RENEW = Script(f"""
local lock, ends, parts, ttl, token, fence = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), ARGV[2], ARGV[3]
{NOW}
local now_ms = math.floor(now / 1000)
local value, held = redis.pcall('GET', lock), redis.call('HGET', parts, token)
if type(value) ~= 'string' or not {SEVERAL.format("value")} then return {{0}} end
if not held or string.match(held, '^%d+') ~= fence then return {{0}} end
local before = tonumber(redis.call('ZSCORE', ends, token) or '0')
if before <= now_ms then return {{0}} end
if before < now_ms + ttl then redis.call('ZADD', ends, string.format('%.0f', now_ms + ttl), token) end
for key, left in pairs({{[lock] = ttl + 1, [ends] = ttl + {AFTERWARDS_MS}, [parts] = ttl + {AFTERWARDS_MS}}}) do
  if redis.call('PTTL', key) < left then redis.call('PEXPIRE', key, string.format('%.0f', left)) end
end
return {{1}}
""")
"""lock ends parts; ttl, token, fence."""

ATTACH = Script("""
local held = redis.call('HGET', KEYS[1], ARGV[1])
if not held then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], string.match(held, '^%d+:%d+:') .. ARGV[2])
return 1
""")
"""parts; token, facts."""


class Parts:
    """The steps of those who hold, or want, a part."""

    def __init__(self, route: Route, naming: Naming, runtime: Runtime, *, sharded: bool) -> None:
        self._route, self._naming, self._runtime = route, naming, runtime
        scripts = (hinting(script, sharded=sharded) for script in (GRANT, RELEASE, EVICT))
        self._grant, self._release, self._evict = scripts

    async def grant(self, ask: Ask, channel: bytes, within: float) -> Any:
        """The fence, or the refusal as the script says it."""
        keys, who = self._keys(ask.name), values.facts(here(self._runtime.pid(), ask.name, ask.note))
        fence = self._naming.keys(ask.name).fence
        arguments = (b"%d %b" % (values.ms(ask.ttl), channel), who, values.quoted(ask.token))
        return await self._route.call(keys[0], self._grant, self._grant.call((*keys, fence), *arguments), within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Give back the part or the ticket."""
        keys = self._keys(name)
        data = self._release.call(keys, values.quoted(token))
        return values.ANSWERS[await self._route.call(keys[0], self._release, data, within)]

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Break the part that was granted with *fence*."""
        keys, who = self._keys(name), values.why(here(self._runtime.pid(), name, ""), reason)
        return bool(await self._route.call(keys[0], self._evict, self._evict.call(keys, fence, who), within))

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Write ourselves into the part."""
        key, facts = self._naming.keys(claim.name).parts, values.facts(here(self._runtime.pid(), claim.name, note))
        await self._route.call(key, ATTACH, ATTACH.call((key,), values.quoted(claim.token), facts), within)

    def renewal(self, claim: Claim) -> Request:
        """What extends one part."""
        keys = self._naming.keys(claim.name)
        arguments = (values.ms(claim.ttl), values.quoted(claim.token), str(claim.fence))
        return Request(keys.lock, RENEW, RENEW.call((keys.lock, keys.ends, keys.parts), *arguments))

    def _keys(self, name: str) -> tuple[bytes, ...]:
        keys = self._naming.keys(name)
        return keys.lock, keys.line, keys.tickets, keys.evicted, keys.ends, keys.parts


def sharing(name: str, now_us: int, ends: Sequence[bytes], parts: Sequence[bytes]) -> tuple[Holder, ...]:
    """Who holds a part of *name*, by what stands in its keys, in the order in which they got it."""
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    held = [
        values.part_holder(name, token, told[token], float(end) / 1000 - now_us / 1e6)
        for token, end in zip(ends[::2], ends[1::2], strict=True)
        if token in told and float(end) * 1000 > now_us
    ]
    return tuple(sorted(held, key=lambda holder: holder.fence))
