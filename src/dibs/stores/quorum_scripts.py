"""What one node of a Redlock does in one step: the Lua of each step, all checks before the first write.

The keys, values and tickets are those of a single Redis (`redis_keys`, `redis_values`), so that other Redlock clients
can be kept out by them too; but a token in a value is ``TOKEN!N``, where N counts the attempts of one ask. What a late
message takes back is then the attempt that it was sent for, and never a later one with the same token.

What a node knows of itself is another key, that of `quorum_member_scripts`.
"""

from __future__ import annotations

from dibs.ports.redis_command import Script

TICKET_MS = 15_000
"""A ticket that was not shown again for so long is void. Waiters ask every 5 s."""

EVICTED_MS = 7 * 86_400_000
"""So long is remembered who broke a lock."""

FARTHEST_US = 86_400_000_000
"""A proposal that is so far ahead of a node's clock is refused: one bad client must not use up the numbers."""

HIGHEST_FENCE = 2**53 - 1

AHEAD_US = 1_000_000
"""By so much ``highest`` is written ahead, so that it is written once a second and not for each grant."""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
"""

_MINE = """
local function starts(value, head) return value and string.sub(value, 1, #head) == head end
local function held_by(value, token) return starts(value, 'dibs:' .. token .. '!') end
"""

_HINT = """
local function hint()
  -- The first who lives asks now; the second a little later, for the first may stand still.
  local woken = 0
  while woken < 2 do
    local token = redis.call('ZRANGE', line, woken, woken)[1]
    if not token then break end
    local ends, channel = string.match(redis.call('HGET', tickets, token) or '', '^(%d+) (%S*) ')
    local lives = channel and tonumber(ends) > now
    if lives and channel ~= '' then
      lives = redis.pcall('PUBLISH', channel, (woken == 0 and 'now ' or 'soon ') .. token) ~= 0
    end
    if lives then
      woken = woken + 1
    else
      redis.call('HDEL', tickets, token)
      redis.call('ZREM', line, token)
    end
  end
end
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
    if redis.call('PTTL', lock) < tonumber(ARGV[2]) then redis.call('PEXPIRE', lock, ARGV[2]) end
    return string.match(rest, '^:(%d+):') .. ' ' .. now_text
  end
  local left = redis.call('PTTL', lock)
  if left < 0 then return {{'immortal'}} end
  if channel ~= '-' then
    local line, tickets = KEYS[3], KEYS[4]
    if not redis.call('ZSCORE', line, token) then redis.call('ZADD', line, now_text, token) end
    local ends = string.format('%.0f', now + {TICKET_MS}000)
    redis.call('HSET', tickets, token, ends .. ' ' .. channel .. ' ' .. facts)
    redis.call('PEXPIRE', line, {TICKET_MS + 5000})
    redis.call('PEXPIRE', tickets, {TICKET_MS + 5000})
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
redis.call('SET', fence, next_text)
local whose = 'dibs:' .. token .. '!' .. ARGV[7] .. ':'
redis.call('SET', lock, whose .. next_text .. ':' .. now_text .. ':' .. facts, 'PX', ARGV[2])
if next > (tonumber(of[3]) or 0) then
  redis.call('HSET', node, 'highest', string.format('%.0f', next + {AHEAD_US}))
end
if tonumber(ARGV[2]) > (tonumber(of[4]) or 0) then redis.call('HSET', node, 'longest', ARGV[2]) end
return next_text .. ' ' .. now_text
""")
"""lock fence line tickets node; token, ttl, proposal, channel ('' to poll, '-' for no ticket), facts, set, attempt.

Answers fence and time, or why not. Asked again with its token it counts the ttl anew, and leaves the fence alone."""

_RAISE = f"""
local function raise(lock, fence, value, wanted)  -- give what the token holds here the fence that a quorum has
  local head, had, tail = string.match(value, '^(dibs:[^:]*:)(%d+)(:.*)$')
  if tonumber(had) >= wanted then return tonumber(had) end
  redis.call('SET', lock, head .. text(wanted) .. tail, 'KEEPTTL')
  if (tonumber(redis.call('GET', fence) or '0') or 0) < wanted then redis.call('SET', fence, text(wanted)) end
  if (tonumber(redis.call('HGET', node, 'highest') or '0') or 0) < wanted then
    redis.call('HSET', node, 'highest', text(wanted + {AHEAD_US}))
  end
  return wanted
end
"""

CONFIRM = Script(f"""
local lock, fence, node = KEYS[1], KEYS[2], KEYS[3]
{NOW}{_MINE}{_RAISE}
local value = redis.call('GET', lock)
if not held_by(value, ARGV[1]) then return {{'gone'}} end
return text(raise(lock, fence, value, tonumber(ARGV[2]))) .. ' ' .. text(now)
""")
"""lock fence node; token, fence. Rises to the fence while the token holds the lock, and answers with what it is."""

RENEW = Script(f"""
local node = KEYS[1]
{NOW}{_MINE}{_RAISE}
local held, longest = {{}}, 0
for i = 1, #ARGV / 3 do
  local lock, fence, evicted = KEYS[3 * i - 1], KEYS[3 * i], KEYS[3 * i + 1]
  local ttl, token, wanted = tonumber(ARGV[3 * i - 2]), ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  local value = redis.pcall('GET', lock)
  held[i] = 'taken'
  if type(value) == 'string' and held_by(value, token)
     and tonumber(string.match(value, '^dibs:[^:]*:(%d+):')) <= wanted then  -- higher: a copy of the ask that came late
    held[i] = 'held'
    raise(lock, fence, value, wanted)
    if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, ttl) end
    longest = math.max(longest, ttl)
  elseif starts(redis.call('GET', evicted), token .. '!') then
    held[i] = 'evicted'
  end
end
if longest > (tonumber(redis.call('HGET', node, 'longest') or '0') or 0) then
  redis.call('HSET', node, 'longest', longest)
end
return held
""")
"""node, and lock fence evicted of each; ttl, token and fence of each."""

RELEASE = Script(f"""
local lock, line, tickets, token = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local value = redis.call('GET', lock)
local own = 'dibs:' .. token .. '!'
local ours = value and string.sub(value, 1, #own) == own
local waiting = redis.call('ZCARD', line)
if ours then
  redis.call('DEL', lock)
  if waiting == 0 then return 'held' end
end
{NOW}{_MINE}{_HINT}
local waited = waiting > 0 and redis.call('ZREM', line, token) == 1
if waited then redis.call('HDEL', tickets, token) end
if waiting > 0 and (ours or (waited and not value)) then hint() end
if ours then return 'held' end
return starts(redis.call('GET', KEYS[4]), token .. '!') and 'evicted' or 'taken'
""")
"""lock line tickets evicted; token. Gives back a grant and a ticket, and wakes who waits if the lock is free."""

WITHDRAW = Script(f"""
{_MINE}
local value = redis.call('GET', KEYS[1])
if held_by(value, ARGV[1]) and tonumber(string.match(value, '^dibs:[^!]*!(%d+):')) <= tonumber(ARGV[2]) then
  return redis.call('DEL', KEYS[1])
end
return 0
""")
"""lock; token, attempt. Takes back a vote that did not come to a quorum. The ticket stays, and nobody is woken: who
waits for the quorum of another takes a vote for a moment, and would wake the next one to do so, without an end."""

EVICT = Script(f"""
local lock, line, tickets, evicted = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local value = redis.call('GET', lock)
local token, held = string.match(value or '', '^dibs:([^:]*):(%d+):')
if held ~= ARGV[1] then return 0 end
{NOW}{_HINT}
redis.call('ZCARD', line)
redis.call('HLEN', tickets)  -- both only to fail here, if they are of another kind
redis.call('DEL', lock)
redis.pcall('SET', evicted, token .. ':' .. held .. ':' .. text(now) .. ':' .. ARGV[2], 'PX', {EVICTED_MS})
hint()
return 1
""")
"""lock line tickets evicted; fence, who and why."""

ATTACH = Script(f"""
{_MINE}
local value = redis.call('GET', KEYS[1])
if not held_by(value, ARGV[1]) then return 0 end
local head = string.match(value, '^dibs:[^:]*:%d+:%d+:')
redis.call('SET', KEYS[1], head .. ARGV[2], 'KEEPTTL')
return 1
""")
"""lock; token, facts."""

SHOW = Script(f"""
local lock, fence, line, tickets, evicted, node = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
{NOW}
return {{
  text(now), redis.call('GET', lock), redis.call('PTTL', lock), redis.call('GET', fence),
  redis.call('ZRANGE', line, 0, -1, 'WITHSCORES'), redis.call('HGETALL', tickets), redis.call('GET', evicted),
  redis.call('HGET', node, 'set') or ''
}}
""")
"""lock fence line tickets evicted node."""

LIST = Script(f"""
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000)
{NOW}
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
