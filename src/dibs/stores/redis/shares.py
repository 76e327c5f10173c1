"""Shares of a name in Redis: how several hold it at once, and what becomes of each of them.

While several hold it, the key of the lock has the value ``dibs.several:SHARE:FENCE:SINCE:FACTS``, of the holder that
came last, and expires with the last of their leases. So a client that wants all of it, also with a plain ``SET key
value NX PX``, is kept out by the command that keeps it out of any lock. Each holder stands in a sorted set, by the end
of its lease in ms, and in a hash, as ``FENCE:SINCE:FACTS``; the field ``@`` of the hash is how many slots are taken in
all. Both are void when the key has another value. A token says itself which share it stands for. (In the server a
share is called a part: the hash ends with ``:parts``, and its tokens begin with ``part-``.)

The queue is that of the lock. Its field ``#`` says until when what is free is kept for the first in it, while several
hold the name; for a name that is free, ``@`` says since when it is, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.errors import LossReason
from dibs.holder import Holder, here
from dibs.runtime import Runtime
from dibs.stores.redis import values
from dibs.stores.redis.keys import RedisNaming
from dibs.stores.redis.port.command import Script
from dibs.stores.redis.port.router import Route, ScriptCall
from dibs.stores.redis.scripts import (
    HIGHEST_FENCE,
    JOIN,
    NOTE_EVICTION,
    NOW,
    QUEUE,
    RESERVED_FOR_MS,
    SEVERAL,
    TICKET_MS,
    WHY_NOT,
    hinting,
    marking,
)
from dibs.stores.store import Ask, Claim

AFTERWARDS_MS = 5_000
"""The two keys outlive the key of the lock by this much, so that they never end before it."""

_PARTS = f"""
local lock, queue, tickets, evicted, ends, parts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
{NOW}{QUEUE}
local now_ms = math.floor(now / 1000)
local value = redis.call('GET', lock)
local several = value and {SEVERAL.format("value")}
local used, slots = 0, nil  -- how many slots are taken, and of how many
redis.call('ZCARD', queue)  -- these only to fail here, before the first write, if they are of another kind
redis.call('HLEN', tickets)
redis.call('ZCARD', ends)
redis.call('HLEN', parts)
local function size(token)  -- nothing for a token that wants all
  local weight, of = string.match(token, '^part%-(%d+)of(%d+)%-')
  return tonumber(weight), tonumber(of)
end
local function leave(token)
  redis.call('HDEL', parts, token)
  redis.call('ZREM', ends, token)
  used = used - size(token)
  redis.call('HSET', parts, '@', text(used))
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
local function may_enter(token)  -- also one that would be told that it asks for other slots
  local weight, of = size(token)
  return not several or (weight and (of ~= slots or fits(weight, of)))
end
local function keep_for(token)
  local moment = now + {RESERVED_FOR_MS}000
  redis.call('HSET', tickets, '#', text(moment) .. ' ' .. token)
  return moment
end
local function kept_for(token)
  local moment, whose = string.match(redis.call('HGET', tickets, '#') or '', '^(%d+) (.*)$')
  moment = whose == token and tonumber(moment)
  if moment and moment > now + {RESERVED_FOR_MS}000 then return keep_for(token) end  -- the clock was set back
  return moment
end
local function is_gone(token)  -- its client has stopped listening, so it would keep what is free from all behind it
  local ticket = redis.call('HGET', tickets, token)
  local channel = string.match(ticket or '', '^%d+ (%S*) ')
  if until_of(ticket) <= now then return true end
  return channel and channel ~= '' and redis.pcall('PUBLISH', channel, 'soon -') == 0  -- no client's token: only to ask
end
local function call_next()  -- the first, if there is room for it, and it has not been called
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
  redis.call('ZADD', ends, text(until_ms), token)
  settle()
end
if several and redis.call('ZSCORE', ends, token) then
  extend()
  return string.match(redis.call('HGET', parts, token), '^%d+')
end
if comes_too_late(token) then return {{'late'}} end
if several and of ~= slots then return {{'slots', text(slots)}} end
{JOIN}local next = math.max((tonumber(last or '0') or 2^53) + 1, now)
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
    if not kept and not several and not struck then  -- the release that freed all of it has called the first
      free_at = math.min(tonumber(redis.call('HGET', tickets, '@') or '0') or now, now)
      redis.call('HSET', tickets, '@', text(free_at))
      kept = free_at + {RESERVED_FOR_MS}000
    end
    if not kept then
      call_next()
      kept = kept_for(ahead) or now
    end
    if kept > now then
      local since = redis.call('ZSCORE', queue, ahead)
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
if not several then redis.call('DEL', ends, parts) end  -- of those that held shares before the key was removed
next = text(next)
local told = next .. ':' .. text(now) .. ':' .. facts
value = 'dibs.several:part-' .. weight .. 'of' .. of .. '-:' .. told
used = used + weight
redis.call('SET', lock, value, 'XX', 'KEEPTTL')  -- these three only to be refused here, if the user may not do them:
redis.call('PEXPIRE', queue, {TICKET_MS + 5000})  -- so nothing is left behind
redis.call('ZADD', ends, 'XX', 0, '')
redis.call('HSET', parts, token, told, '@', text(used))
if not several then redis.call('PEXPIRE', parts, text(ttl + {AFTERWARDS_MS})) end
redis.call('SET', lock, value, 'PX', ttl)
redis.call('SET', fence, next)
several, slots = true, of
extend()
call_next()
return next
""")
"""lock queue tickets evicted ends parts fence; ttl and channel, facts, token: as those of the grant of a lock."""

RELEASE = Script(f"""
{_PARTS}{WHY_NOT}
local token = ARGV[1]
local held = several and redis.call('ZSCORE', ends, token)
local waited = drop(token) == 1
if held then leave(token) end
if several then freed() elseif waited and redis.call('EXISTS', lock) == 0 then hint() end
tidy()
return held and 'held' or why_not(evicted, token)
""")
"""lock queue tickets evicted ends parts; token. Gives back a share or a ticket, and wakes waiters that fit now."""

EVICT = Script(f"""
{_PARTS}{NOTE_EVICTION}
if not several then return 0 end
for _, token in ipairs(redis.call('ZRANGE', ends, 0, -1)) do
  if string.match(redis.call('HGET', parts, token) or '', '^%d+') == ARGV[1] then
    leave(token)
    note_eviction(evicted, token, ARGV[1], text(now), ARGV[2])
    freed()
    tidy()
    return 1
  end
end
return 0
""")
"""lock queue tickets evicted ends parts; fence, user and reason of the eviction."""

RENEW = Script(f"""
local lock, ends, parts = KEYS[1], KEYS[2], KEYS[3]
local ttl, longest, token, fence, evicted = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
{NOW}{WHY_NOT}
local now_ms = math.floor(now / 1000)
local value, held = redis.pcall('GET', lock), redis.call('HGET', parts, token)
local several = type(value) == 'string' and {SEVERAL.format("value")}
local before = tonumber(redis.call('ZSCORE', ends, token) or '0')
if not several or string.match(held or '', '^%d+') ~= fence or before <= now_ms then
  return {{why_not(evicted, token)}}
end
local till = math.min(math.max(before, now_ms + ttl), now_ms + longest)  -- farther away: the clock was set back
redis.call('ZADD', ends, string.format('%.0f', till), token)
local left = tonumber(redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2]) - now_ms + 1
redis.call('PEXPIRE', lock, string.format('%.0f', left))
for _, key in ipairs({{ends, parts}}) do redis.call('PEXPIRE', key, string.format('%.0f', left + {AFTERWARDS_MS})) end
return {{1}}
""")
"""lock ends parts; ttl, the longest ttl, token, fence, key of evictions. It is asked and answers as the renewal of a
lock does."""

ATTACH = Script("""
local held = redis.call('HGET', KEYS[1], ARGV[1])
if not held then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], string.match(held, '^%d+:%d+:') .. ARGV[2])
return 1
""")
"""parts; token, facts. Writes new facts into the share of the token."""


class RedisShares:
    """The steps of clients that hold, or want, a share."""

    def __init__(self, route: Route, naming: RedisNaming, runtime: Runtime, *, sharded: bool) -> None:
        self._route, self._naming, self._runtime = route, naming, runtime
        scripts = (hinting(script, sharded=sharded) for script in (GRANT, RELEASE, marking(RELEASE), EVICT))
        self._grant, self._release, self._marking, self._evict = scripts

    async def grant(self, ask: Ask, channel: bytes, within: float) -> Any:
        """The fence, or the refusal as the script says it."""
        keys, who = self._keys(ask.name), values.facts(here(self._runtime.pid(), ask.name, ask.note))
        fence = self._naming.keys(ask.name).fence
        arguments = (b"%d %b" % (values.ms(ask.ttl), channel), who, values.quoted(ask.token))
        return await self._route.call(keys[0], self._grant, self._grant.call((*keys, fence), *arguments), within)

    async def release(self, name: str, token: str, within: float, mark_ms: int = 0) -> LossReason | None:
        """Give back the share or the ticket; for *mark_ms*, refuse asks of the token that still arrive."""
        keys, script = self._keys(name), self._marking if mark_ms else self._release
        data = script.call(keys, values.quoted(token), *([mark_ms] if mark_ms else []))
        return values.ANSWERS[await self._route.call(keys[0], script, data, within)]

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """End the share that was granted with *fence*; tell whether there was one."""
        keys, who = self._keys(name), values.why(here(self._runtime.pid(), name, ""), reason)
        return bool(await self._route.call(keys[0], self._evict, self._evict.call(keys, fence, who), within))

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Write this process and *note* into the share, as its holder."""
        key, facts = self._naming.keys(claim.name).shares, values.facts(here(self._runtime.pid(), claim.name, note))
        await self._route.call(key, ATTACH, ATTACH.call((key,), values.quoted(claim.token), facts), within)

    def renewal(self, claim: Claim) -> ScriptCall:
        """The request that extends one share."""
        keys = self._naming.keys(claim.name)
        lasts = values.ms(claim.ttl), values.longest_ms(claim)
        arguments = (*lasts, values.quoted(claim.token), str(claim.fence), keys.evicted)
        return ScriptCall(keys.lock, RENEW, RENEW.call((keys.lock, keys.ends, keys.shares), *arguments))

    def _keys(self, name: str) -> tuple[bytes, ...]:
        keys = self._naming.keys(name)
        return keys.lock, keys.queue, keys.tickets, keys.evicted, keys.ends, keys.shares


def sharing(name: str, now_us: int, ends: Sequence[bytes], shares: Sequence[bytes]) -> tuple[Holder, ...]:
    """The holders of shares of *name*, as its keys name them, in the order in which they were granted."""
    told = dict(zip(shares[::2], shares[1::2], strict=True))
    held = [
        values.share_holder(name, token, told[token], float(end) / 1000 - now_us / 1e6)
        for token, end in zip(ends[::2], ends[1::2], strict=True)
        if token in told and float(end) * 1000 > now_us
    ]
    return tuple(sorted(filter(None, held), key=lambda holder: holder.fence))
