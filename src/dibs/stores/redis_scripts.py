"""What the server does in one step: the Lua of each step, all checks before the first write.

Each step is idempotent for its token, so asking twice does what asking once does. Numbers that can pass 2^53 travel
as strings, and are written with ``%.0f``: Lua's own conversion keeps 14 digits. Every moment is the server's own.

The value of a held lock is ``dibs:TOKEN:FENCE:SINCE:FACTS``, one string: so whoever does ``SET key value NX PX`` on
the key is kept out by us, and keeps us out. A ticket is ``UNTIL CHANNEL FACTS``; the field ``@`` of the tickets is the
moment at which the lock was, or will be, free.
"""

from __future__ import annotations

from dibs.ports.redis_command import Script

RESERVED_FOR_MS = 100
"""For so long a lock that was let go is kept for the first in line; then anyone may take it."""

TICKET_MS = 15_000
"""A ticket that was not shown again for so long is void: its owner is gone or stands still. Waiters ask every 5 s."""

EVICTED_MS = 7 * 86_400_000
"""So long is remembered who broke a lock."""

HIGHEST_FENCE = 2**53 - 1

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
"""

_MINE = "{0} and string.sub({0}, 1, #{1} + 6) == 'dibs:' .. {1} .. ':'"

SEVERAL = "string.sub({0}, 1, 13) == 'dibs.several:'"
"""Whether several hold a part each, by the value of the key; see `redis_parts`."""

LINE = """
local function text(number) return string.format('%.0f', number) end
local function first()
  return redis.call('ZRANGE', line, 0, 0)[1]
end
local function until_of(ticket)
  return tonumber(string.match(ticket or '', '^%d+')) or 0
end
local function drop(token)
  redis.call('HDEL', tickets, token)
  return redis.call('ZREM', line, token)
end
local function tidy()  -- the moment in '@' is of use only while somebody waits
  if redis.call('ZCARD', line) == 0 then redis.call('DEL', tickets) end
end
local function hint()
  -- Wake the first who lives, and tell the second to look after the reservation: the first may stand still, and
  -- then nobody else would know. PUBLISH answers 0 for a client that is gone. A ticket without a channel, or a user
  -- without the right to publish, cannot be woken, and polls.
  local woken = 0
  while woken < 2 do
    local token = redis.call('ZRANGE', line, woken, woken)[1]
    if not token then break end
    local ticket = redis.call('HGET', tickets, token)
    local channel = string.match(ticket or '', '^%d+ (%S*) ')
    local lives = channel and until_of(ticket) > now
    if lives and channel ~= '' then
      local heard = redis.pcall('PUBLISH', channel, (woken == 0 and 'now ' or 'soon ') .. token)
      lives = heard ~= 0
    end
    if lives then woken = woken + 1 else drop(token) end
  end
end
local function set_free()
  if redis.call('ZCARD', line) > 0 then
    redis.call('HSET', tickets, '@', text(now))
    hint()
  end
end
"""

GRANT = Script(f"""
local call, lock, fence, line, tickets = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local facts, token = ARGV[2], ARGV[3]
local ttl, channel = string.match(ARGV[1], '^(%d+) (.*)$')
local last, free_at, time = call('GET', fence), call('HGET', tickets, '@'), call('TIME')
local now = time[1] * 1000000 + time[2]
local next = math.max((tonumber(last or '0') or 2^53) + 1, now)
local fits = next <= {HIGHEST_FENCE}
next = string.format('%.0f', next)
local value = 'dibs:' .. token .. ':' .. next .. ':' .. string.format('%.0f', now) .. ':' .. facts
if fits and not free_at and call('SET', lock, value, 'NX', 'PX', ttl) then
  call('SET', fence, next)
  return next
end
local held = call('GET', lock)
if {_MINE.format("held", "token")} then return string.match(held, '^dibs:[^:]*:(%d+):') end
if not held and not fits then return {{'exhausted', last}} end
{LINE}
local function join(free_at)
  if channel == '-' then return end
  if not call('ZSCORE', line, token) then
    local newest = tonumber(call('ZRANGE', line, -1, -1, 'WITHSCORES')[2]) or 0
    call('ZADD', line, text(math.max(now, newest + 1)), token)
  end
  call('HSET', tickets, token, text(now + {TICKET_MS}000) .. ' ' .. channel .. ' ' .. facts, '@', text(free_at))
  call('PEXPIRE', line, {TICKET_MS + 5000})
  call('PEXPIRE', tickets, {TICKET_MS + 5000})
end
if held then
  local left = call('PTTL', lock)
  if left < 0 then return {{'immortal'}} end
  join(now + left * 1000)
  return {{'held', left, text(now), held}}
end
local ahead = first()
while ahead and ahead ~= token and until_of(call('HGET', tickets, ahead)) <= now do
  drop(ahead)
  ahead = first()
end
if ahead and ahead ~= token then
  -- Later than now: the lock was removed before its time, or the clock fell back. It counts as freed just now.
  free_at = tonumber(free_at)
  if free_at > now then
    free_at = now
    call('HSET', tickets, '@', text(now))
  end
  local kept = math.ceil({RESERVED_FOR_MS} - (now - free_at) / 1000)
  if kept > 0 then
    local since, theirs = call('ZSCORE', line, ahead), call('HGET', tickets, ahead)
    join(free_at)
    return {{'kept', kept, text(now), since, theirs}}
  end
  drop(ahead)  -- it let its time pass
end
drop(token)
tidy()
call('SET', lock, value, 'PX', ttl)
call('SET', fence, next)
return next
""")
"""lock fence line tickets; ttl and channel to be woken on ('' to poll, '-' for no ticket), facts, token.

That makes ten words: of more, a server that wants a password does not say so, but hangs up.
"""

RENEW = Script(f"""
local held = {{}}
for i, lock in ipairs(KEYS) do
  local ttl, value = tonumber(ARGV[2 * i - 1]), redis.pcall('GET', lock)  -- pcall: a list there is no lock of ours
  held[i] = 0
  local grant = ARGV[2 * i]
  if type(value) == 'string' and {_MINE.format("value", "grant")} then
    held[i] = 1
    if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, ttl) end  -- a late one never shortens it
  end
end
return held
""")
"""Any number of locks of one server; ttl, and ``TOKEN:FENCE``, of each."""

WHY_NOT = Script("""
local gone, token = redis.call('GET', KEYS[1]), ARGV[1]
return gone and string.sub(gone, 1, #token + 1) == token .. ':' and 'evicted' or 'taken'
""")
"""evicted; token."""

RELEASE = Script(f"""
local call, lock, line, tickets, evicted = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token = ARGV[1]
local held, others = call('GET', lock), call('HLEN', tickets)
local ours = {_MINE.format("held", "token")}
if ours and others == 0 then
  call('DEL', lock)
  return 'held'
end
local why = 'held'
if not ours then
  local gone = call('GET', evicted)
  why = gone and string.sub(gone, 1, #token + 1) == token .. ':' and 'evicted' or 'taken'
end
if others > 0 then
  {NOW}{LINE}
  call('ZCARD', line)  -- fails here, before the first write, if it is of another kind
  if ours then call('DEL', lock) end
  local waited = drop(token) == 1
  if ours then set_free() elseif waited and (not held or {SEVERAL.format("held")}) then hint() end
  tidy()
end
return why
""")
"""lock line tickets evicted; token. Gives back a grant or a ticket, and wakes who is next if the lock is free."""

EVICT = Script(f"""
local lock, line, tickets, evicted = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local value = redis.call('GET', lock)
local token, held = string.match(value or '', '^dibs:([^:]*):(%d+):')
if held ~= ARGV[1] then return 0 end
{NOW}{LINE}
redis.call('ZCARD', line)
redis.call('HLEN', tickets)  -- both only to fail here, if they are of another kind
redis.call('DEL', lock)  -- first, and allowed also when the memory is full; then what must not fail it
redis.pcall('SET', evicted, token .. ':' .. held .. ':' .. text(now) .. ':' .. ARGV[2], 'PX', {EVICTED_MS})
set_free()
return 1
""")
"""lock line tickets evicted; fence, who and why."""

ATTACH = Script(f"""
local value, token = redis.call('GET', KEYS[1]), ARGV[1]
if not ({_MINE.format("value", "token")}) then return 0 end
local head = string.match(value, '^dibs:[^:]*:%d+:%d+:')
redis.call('SET', KEYS[1], head .. ARGV[2], 'PX', redis.call('PTTL', KEYS[1]))
return 1
""")
"""lock; token, facts."""

SHOW = Script(f"""
local lock, fence, line, tickets, evicted = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
{NOW}
return {{
  string.format('%.0f', now), redis.call('GET', lock), redis.call('PTTL', lock), redis.call('GET', fence),
  redis.call('ZRANGE', line, 0, -1, 'WITHSCORES'), redis.call('HGETALL', tickets), redis.call('GET', evicted),
  redis.call('ZRANGE', KEYS[7], 0, -1, 'WITHSCORES'), redis.call('HGETALL', KEYS[8])
}}
""")
"""All keys."""


def hinting(script: Script, *, sharded: bool) -> Script:
    """*script* as it hints in a cluster, where each node counts only who listens there to the slot of the lock."""
    return script.using("'PUBLISH'", "'SPUBLISH'") if sharded else script
