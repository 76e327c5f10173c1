"""What one node of a Redlock does in one step: the Lua of each step, all checks before the first write.

The keys, values and tickets are those of a single Redis (`redis.keys`, `redis.values`), so that other Redlock clients
can be kept out by them too; but a token in a value is ``TOKEN!N``, where N counts the attempts of one ask. What a late
message takes back is then the attempt that it was sent for, and never a later one with the same token.

What a node knows of itself is another key, that of `member_scripts`.
"""

from __future__ import annotations

from dibs.stores.redis.port.command import Script
from dibs.stores.redis.scripts import HIGHEST_FENCE, HINT, LENGTHEN, NOTE_EVICTION, NOW, TEXT, TICKET_MS, WHY_NOT

FARTHEST_US = 86_400_000_000
"""A proposal further than this ahead of a node's clock is refused: one bad client must not use up the numbers."""

KEPT = 10**15
"""In the place of the number of an attempt, once its grant was renewed: what takes an attempt back comes too late.

A vote of an earlier attempt, which the winning one has not reached, counts from the first renewal on."""

AHEAD_US = 1_000_000
"""``highest`` is written this far ahead, so once a second and not for each grant."""

_MINE = """
local function starts(value, head) return value and string.sub(value, 1, #head) == head end
local function held_by(value, token) return starts(value, 'dibs:' .. token .. '!') end
"""

GRANT = Script(f"""
local lock, fence, node, token = KEYS[1], KEYS[2], KEYS[5], ARGV[1]
local of = redis.call('HMGET', node, 'set', 'floor', 'highest', 'longest')
if of[1] ~= ARGV[6] then return {{'stranger', of[1] or ''}} end
local time = redis.call('TIME')
local now_text = time[1] .. string.sub('00000' .. time[2], -6)  -- half the price of a format
local now = tonumber(now_text)
local channel, facts = ARGV[4], ARGV[5]
local value = redis.call('GET', lock)
if value then
  local own = 'dibs:' .. token .. '!'
  if string.sub(value, 1, #own) == own then
    local before, rest = string.match(value, '^dibs:[^!]*!(%d+)(:.*)$')
    if tonumber(before) < tonumber(ARGV[7]) then redis.call('SET', lock, own .. ARGV[7] .. rest, 'KEEPTTL') end
    redis.call('PEXPIRE', lock, ARGV[2])
    return string.match(rest, '^:(%d+):') .. ' ' .. now_text
  end
  local left = redis.call('PTTL', lock)
  if left < 0 then return {{'immortal'}} end
  if channel ~= '-' then
    local queue, tickets = KEYS[3], KEYS[4]
    redis.call('ZADD', queue, 'XX', 0, '')  -- this one and the next to be refused here, if the user may not do them:
    redis.call('PEXPIRE', queue, {TICKET_MS + 5000})  -- so no key stays without a ttl
    local ends = string.format('%.0f', now + {TICKET_MS}000)
    redis.call('HSET', tickets, token, ends .. ' ' .. channel .. ' ' .. facts)
    redis.call('PEXPIRE', tickets, {TICKET_MS + 5000})
    if not redis.call('ZSCORE', queue, token) then
      redis.call('ZADD', queue, now_text, token)
      redis.call('PEXPIRE', queue, {TICKET_MS + 5000})
    end
  end
  return {{'held', left, now_text, value}}
end
local next, proposal = 2^53, tonumber(ARGV[3])
if proposal > now + {FARTHEST_US} then return {{'ahead', now_text}} end
local last = redis.call('GET', fence)
next = math.max((tonumber(last or '0') or next) + 1, (tonumber(of[2]) or 0) + 1, proposal)
if next > {HIGHEST_FENCE} then return {{'exhausted', last}} end
if channel ~= '-' then
  redis.call('ZREM', KEYS[3], token)
  redis.call('HDEL', KEYS[4], token)
end
local next_text = next == proposal and ARGV[3] or string.format('%.0f', next)
if next > (tonumber(of[3]) or 0) then
  redis.call('HSET', node, 'highest', string.format('%.0f', next + {AHEAD_US}))
end
if tonumber(ARGV[2]) > (tonumber(of[4]) or 0) then redis.call('HSET', node, 'longest', ARGV[2]) end
redis.call('SET', fence, next_text)
local whose = 'dibs:' .. token .. '!' .. ARGV[7] .. ':'
redis.call('SET', lock, whose .. next_text .. ':' .. now_text .. ':' .. facts, 'PX', ARGV[2])
return next_text .. ' ' .. now_text
""")
"""lock fence queue tickets node; token, ttl, proposal, channel ('' to poll, '-' for no ticket), facts, set, attempt.

Answers fence and time, or why not. Asked again with its token it counts the ttl anew, and leaves the fence alone."""

_RAISE = f"""
local function raise(lock, fence, value, wanted)  -- give what the token holds here the fence that a quorum has
  local head, had, tail = string.match(value, '^(dibs:[^:]*:)(%d+)(:.*)$')
  if tonumber(had) >= wanted then return tonumber(had) end
  if (tonumber(redis.call('HGET', node, 'highest') or '0') or 0) < wanted then
    redis.call('HSET', node, 'highest', text(wanted + {AHEAD_US}))
  end
  redis.call('SET', lock, head .. text(wanted) .. tail, 'KEEPTTL')
  if (tonumber(redis.call('GET', fence) or '0') or 0) < wanted then redis.call('SET', fence, text(wanted)) end
  return wanted
end
"""

CONFIRM = Script(f"""
local lock, fence, node = KEYS[1], KEYS[2], KEYS[3]
{NOW}{TEXT}{_MINE}{_RAISE}
local value = redis.call('GET', lock)
if not held_by(value, ARGV[1]) then return {{'gone'}} end
return text(raise(lock, fence, value, tonumber(ARGV[2]))) .. ' ' .. text(now)
""")
"""lock fence node; token, fence. Rises to the fence while the token holds the lock, and answers with what it is."""

RENEW = Script(f"""
local node = KEYS[1]
{NOW}{TEXT}{_MINE}{_RAISE}{WHY_NOT}{LENGTHEN}
local held, longest = {{}}, 0
for i = 1, #ARGV / 4 do
  local lock, fence, evicted = KEYS[3 * i - 1], KEYS[3 * i], KEYS[3 * i + 1]
  local ttl, most = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 2])
  local token, wanted = ARGV[4 * i - 1], tonumber(ARGV[4 * i])
  local value = redis.pcall('GET', lock)
  if type(value) == 'string' and held_by(value, token)
     and tonumber(string.match(value, '^dibs:[^:]*:(%d+):')) <= wanted then  -- higher: a copy of the ask that came late
    held[i] = 'held'
    if not starts(value, 'dibs:' .. token .. '!{KEPT}:') then
      value = 'dibs:' .. token .. '!{KEPT}' .. string.match(value, '^dibs:[^:]*(:.*)$')
      redis.call('SET', lock, value, 'KEEPTTL')
    end
    raise(lock, fence, value, wanted)
    lengthen(lock, ttl, most)
    longest = math.max(longest, ttl)
  else
    held[i] = why_not(evicted, token)
  end
end
if longest > (tonumber(redis.call('HGET', node, 'longest') or '0') or 0) then
  redis.call('HSET', node, 'longest', longest)
end
return held
""")
"""node, and lock fence evicted of each; ttl, the longest ttl, token and fence of each."""

RELEASE = Script(f"""
local lock, queue, tickets, token = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local value = redis.call('GET', lock)
local own = 'dibs:' .. token .. '!'
local ours = value and string.sub(value, 1, #own) == own
local waiting = redis.call('ZCARD', queue)
if ours then
  redis.call('DEL', lock)
  if waiting == 0 then return 'held' end
end
{NOW}{TEXT}{HINT}{WHY_NOT}
local waited = waiting > 0 and redis.call('ZREM', queue, token) == 1
if waited then redis.call('HDEL', tickets, token) end
if waiting > 0 and (ours or (waited and not value)) then hint() end
if ours then return 'held' end
return why_not(KEYS[4], token)
""")
"""lock queue tickets evicted; token. Gives back a grant and a ticket, and wakes the next if the lock is free."""

WITHDRAW = Script(f"""
{_MINE}
local value = redis.call('GET', KEYS[1])
if held_by(value, ARGV[1]) and tonumber(string.match(value, '^dibs:[^!]*!(%d+):')) <= tonumber(ARGV[2]) then
  return redis.call('DEL', KEYS[1])
end
return 0
""")
"""lock; token, attempt. Takes back a vote that did not come to a quorum.

The ticket stays, and no client is woken: a client that waits for the quorum of another takes a vote for a moment, and
would wake the next one to do so, on and on."""

EVICT = Script(f"""
local lock, queue, tickets, evicted = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local value = redis.call('GET', lock)
local token, held = string.match(value or '', '^dibs:([^:]*):(%d+):')
if held ~= ARGV[1] then return 0 end
{NOW}{TEXT}{HINT}{NOTE_EVICTION}
redis.call('ZCARD', queue)
redis.call('HLEN', tickets)  -- both only to fail here, if they are of another kind
redis.call('DEL', lock)
note_eviction(evicted, string.match(token, '^[^!]*'), held, text(now), ARGV[2])
hint()
return 1
""")
"""lock queue tickets evicted; fence, user and reason of the eviction."""

ATTACH = Script(f"""
{_MINE}
local value = redis.call('GET', KEYS[1])
if not held_by(value, ARGV[1]) then return 0 end
local head = string.match(value, '^dibs:[^:]*:%d+:%d+:')
redis.call('SET', KEYS[1], head .. ARGV[2], 'KEEPTTL')
return 1
""")
"""lock; token, facts. Writes new facts into the value, if the token holds the lock."""

SHOW = Script(f"""
local lock, fence, queue, tickets, evicted, node = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
{NOW}{TEXT}
return {{
  text(now), redis.call('GET', lock), redis.call('PTTL', lock), redis.call('GET', fence),
  redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES'), redis.call('HGETALL', tickets), redis.call('GET', evicted),
  redis.call('HGET', node, 'set') or ''
}}
""")
"""lock fence queue tickets evicted node. Answers with all that the node knows of the lock, for people."""

LIST = Script(f"""
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000)
{NOW}{TEXT}
local found = {{}}
for _, key in ipairs(step[2]) do
  local value = redis.pcall('GET', key)
  if type(value) == 'string' then
    found[#found + 1] = {{key, value, redis.call('PTTL', key)}}
  end
end
return {{step[1], text(now), found}}
""")
"""(no key); cursor, pattern. One step through the keys that hold a string, with what they hold and their ttl."""
