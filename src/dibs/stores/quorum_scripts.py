"""What one node of a Redlock does in one step: the Lua of each step, all checks before the first write.

The keys, values and tickets are those of a single Redis (`redis_keys`, `redis_values`), so that other Redlock clients
can be kept out by them too; but a token in a value is ``TOKEN!N``, where N counts the attempts of one ask. What a late
message takes back is then the attempt that it was sent for, and never a later one with the same token.

A node has one more key, shared by all its locks: a hash that says

- ``id``: who it is, made at the first contact, and ``run``: which run of its server we knew;
- ``set`` and ``size``: to which nodes it belongs. Without it the node does not vote: it is new, or it lost its memory;
- ``floor``: no fence is given out that is not above it; ``highest``: none that any lock ever had here is above that;
- ``longest``: the longest ttl in ms it was ever asked for;
- ``away``: that its server was restarted, with an old memory perhaps; ``back``: since when it is known not to vote.

The floor stands for the fences of all locks that the node has forgotten, so one number brings them back.
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

_NOW = """
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
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%.0f', now)
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
{_NOW}{_MINE}{_RAISE}
local value = redis.call('GET', lock)
if not held_by(value, ARGV[1]) then return {{'gone'}} end
return text(raise(lock, fence, value, tonumber(ARGV[2]))) .. ' ' .. text(now)
""")
"""lock fence node; token, fence. Rises to the fence while the token holds the lock, and answers with what it is."""

RENEW = Script(f"""
local node = KEYS[1]
{_NOW}{_MINE}{_RAISE}
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
{_NOW}{_MINE}{_HINT}
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
{_NOW}{_HINT}
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
{_NOW}
return {{
  text(now), redis.call('GET', lock), redis.call('PTTL', lock), redis.call('GET', fence),
  redis.call('ZRANGE', line, 0, -1, 'WITHSCORES'), redis.call('HGETALL', tickets), redis.call('GET', evicted),
  redis.call('HGET', node, 'set') or ''
}}
""")
"""lock fence line tickets evicted node."""

HELLO = Script("""
local node = KEYS[1]
redis.call('HSETNX', node, 'id', ARGV[1])
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
local known = redis.call('HGET', node, 'run') or ''
if run ~= known and run ~= '' then
  redis.call('HSET', node, 'run', run)
  if known ~= '' and ARGV[2] ~= 'durable' then
    redis.call('HDEL', node, 'set', 'back')
    redis.call('HSET', node, 'away', 1)
  end
end
return run
""")
"""node; an id for a node that has none, and 'durable' if what a node has answered is on its disk.

The first thing that is said on every connection, so that nothing is asked of a server that came back, with an old
memory perhaps, before it is known to have been away."""

STATE = Script(f"""
local of = redis.call('HMGET', KEYS[1], 'id', 'run', 'set', 'size', 'floor', 'highest', 'longest', 'back', 'away')
{_NOW}
if ARGV[1] == 'look' or of[3] or of[8] then return {{text(now), unpack(of, 1, 9)}} end
redis.call('HSET', KEYS[1], 'back', text(now))
of[8] = text(now)
return {{text(now), unpack(of, 1, 9)}}
""")
"""node; 'note' to begin the wait of a node without a memory, or 'look'."""

JOIN = Script("""
local node = KEYS[1]
local of = redis.call('HMGET', node, 'set', 'back', 'floor', 'highest', 'longest', 'id')
if of[1] == ARGV[1] then return 1 end
if of[1] or of[6] ~= ARGV[5] or (of[2] or '') ~= ARGV[6] then return 0 end  -- it forgot once more, or was let in
local floor = math.max(tonumber(of[3]) or 0, tonumber(ARGV[3]))
local longest = math.max(tonumber(of[5]) or 0, tonumber(ARGV[4]))
local highest = math.max(tonumber(of[4]) or 0, floor)
local function text(number) return string.format('%.0f', number) end
redis.call('HSET', node, 'set', ARGV[1], 'size', ARGV[2], 'floor', text(floor), 'highest', text(highest),
  'longest', text(longest))
redis.call('HDEL', node, 'back', 'away')
return 1
""")
"""node; set, size, floor, longest, id, back. The node votes from now on."""

RESEED = Script("""
local node = KEYS[1]
local of = redis.call('HMGET', node, 'floor', 'highest')
local floor = string.format('%.0f', math.max(tonumber(of[1]) or 0, tonumber(ARGV[3])))
redis.call('HSET', node, 'set', ARGV[1], 'size', ARGV[2], 'floor', floor)
if (tonumber(of[2]) or 0) < tonumber(floor) then redis.call('HSET', node, 'highest', floor) end
redis.call('HDEL', node, 'back', 'away')
return floor
""")
"""node; set, size, floor. Said by a person: it votes, and no fence is given out that is not above the floor."""

LIST = Script(f"""
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000)
{_NOW}
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

ALL = (GRANT, CONFIRM, RENEW, RELEASE, WITHDRAW, EVICT, ATTACH, SHOW, STATE, JOIN, RESEED, LIST)
