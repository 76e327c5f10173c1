"""What the server does in one step: the Lua of each step, all checks before the first write.

Each step is idempotent for its token, so asking twice does what asking once does. Numbers that can pass 2^53 travel
as strings, and are written with ``%.0f``: Lua's own conversion keeps 14 digits. Every moment is the server's own.

The value of a held lock is ``dibs:TOKEN:FENCE:SINCE:FACTS``, one string: so a program that does ``SET key value NX
PX`` on the key is kept out by us, and keeps us out. A ticket is ``UNTIL CHANNEL FACTS``; the field ``@`` of the
tickets is the moment at which the lock was, or will be, free.

The field ``!TOKEN`` says until when an ask of that token is refused, since the token was given back before the ask came
(see `doubt`), ``!`` until when there is such a field, and ``!!`` when those that are over are next removed. While there
is one there is an ``@`` too, so an ask for a free lock without waiters need not look for it.
"""

from __future__ import annotations

from dibs.stores.redis.port.command import Script

RESERVED_FOR_MS = 100
"""A lock that was given back is kept this long for the first in the queue; then anyone may take it."""

TICKET_MS = 15_000
"""A ticket that was not shown again for this long is void: its owner is gone or stands still. Waiters ask every 5 s."""

EVICTED_MS = 7 * 86_400_000
"""An eviction is remembered this long."""

EVICTED_KEPT = 16
"""The owners of this many evicted grants of one name are told that they were evicted; older ones, that it was taken."""

HIGHEST_FENCE = 2**53 - 1
"""Lua counts in floating point: above this it can no longer tell a number from the next."""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
"""

_MINE = "{0} and string.sub({0}, 1, #{1} + 6) == 'dibs:' .. {1} .. ':'"

SEVERAL = "string.sub({0}, 1, 13) == 'dibs.several:'"
"""Whether several hold a share each, by the value of the key; see `shares`."""

WHY_NOT = """
local function why_not(evicted, token)  -- a key of another kind tells nothing, and fails nothing
  local told = redis.pcall('GET', evicted)
  if type(told) ~= 'string' then return 'taken' end
  local last, before = string.match(told, '^([^:!]*)[^ ]*(.*)$')
  return (last == token or string.find(before .. ' ', ' ' .. token .. ' ', 1, true)) and 'evicted' or 'taken'
end
"""
"""Why *token*, which does not hold its lock, has lost it.

The key holds ``TOKEN:FENCE:AT:BY:REASON`` of the grant that was evicted last, then the tokens of those before."""

NOTE_EVICTION = f"""
local function note_eviction(evicted, token, fence, at, why)
  local told, before = redis.pcall('GET', evicted), ''
  if type(told) == 'string' then
    local last, rest = string.match(told, '^([^:!]*)[^ ]*(.*)$')
    local kept = 1
    for each in string.gmatch(last .. rest, '[^ ]+') do
      if kept < {EVICTED_KEPT} then before, kept = before .. ' ' .. each, kept + 1 end
    end
  end
  told = token .. ':' .. fence .. ':' .. at .. ':' .. why .. before
  redis.pcall('SET', evicted, told, 'PX', {EVICTED_MS})
end
"""
"""Remembering an eviction. It cannot fail the eviction, which is done, also when the memory is full."""

TEXT = """
local function text(number) return string.format('%.0f', number) end
"""
"""Writing a number: Lua's own conversion keeps 14 digits."""

HINT = """
local function until_of(ticket)
  return tonumber(string.match(ticket or '', '^%d+')) or 0
end
local function drop(token)
  redis.call('HDEL', tickets, token)
  return redis.call('ZREM', queue, token)
end
local function hint()
  -- Wake the first that lives, and tell the second to look after the reservation: the first may stand still, and
  -- then no other client would know. PUBLISH answers 0 for a client that is gone. A ticket without a channel, or a user
  -- without the right to publish, cannot be woken, and polls.
  local woken = 0
  while woken < 2 do
    local token = redis.call('ZRANGE', queue, woken, woken)[1]
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
"""
"""Calling the waiters at the head of the queue, and dropping the tickets of clients that are gone."""

QUEUE = f"""
{TEXT}{HINT}
local function first()
  return redis.call('ZRANGE', queue, 0, 0)[1]
end
local function tidy()  -- the moment in '@' is of use only while there are waiters, or an ask is to be refused
  if redis.call('ZCARD', queue) > 0 then return end
  if (tonumber(redis.call('HGET', tickets, '!') or '0') or 0) <= now then redis.call('DEL', tickets) end
end
local function comes_too_late(token)
  return (tonumber(redis.call('HGET', tickets, '!' .. token) or '0') or 0) > now
end
local function set_free()
  if redis.call('ZCARD', queue) > 0 then
    redis.call('HSET', tickets, '@', text(now))
    hint()
  end
end
"""

JOIN = f"""
local function join(free_at)
  if channel == '-' then return end
  -- The first two change nothing that matters. A user who may not do them is refused here, where no key without a ttl
  -- is left; a user who may not do the third one is refused there.
  redis.call('ZADD', queue, 'XX', 0, '')
  redis.call('PEXPIRE', queue, {TICKET_MS + 5000})
  redis.call('HSET', tickets, token, text(now + {TICKET_MS}000) .. ' ' .. channel .. ' ' .. facts, '@', text(free_at))
  if redis.call('PTTL', tickets) < {TICKET_MS + 5000} then redis.call('PEXPIRE', tickets, {TICKET_MS + 5000}) end
  if not redis.call('ZSCORE', queue, token) then
    local newest = tonumber(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]) or 0
    redis.call('ZADD', queue, text(math.max(now, newest + 1)), token)
    redis.call('PEXPIRE', queue, {TICKET_MS + 5000})
  end
end
"""
"""Taking a ticket, or showing it again."""

GRANT = Script(f"""
local call, lock, fence, queue, tickets = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
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
if {_MINE.format("held", "token")} then  -- granted before; but its client counts the ttl from now
  call('PEXPIRE', lock, ttl)
  return string.match(held, '^dibs:[^:]*:(%d+):')
end
if not held and not fits then return {{'exhausted', last}} end
{QUEUE}
if comes_too_late(token) then return {{'late'}} end
{JOIN}if held then
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
    local since, theirs = call('ZSCORE', queue, ahead), call('HGET', tickets, ahead)
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
"""lock fence queue tickets; ttl and channel to be woken on ('' to poll, '-' for no ticket), facts, token.

That makes ten words: of more, a server that wants a password does not say so, but hangs up.
"""

LENGTHEN = """
local function lengthen(lock, ttl, longest)  -- a renewal, which may come late, never shortens what was promised
  local left = redis.call('PTTL', lock)
  if left < ttl then
    redis.call('PEXPIRE', lock, ttl)
  elseif left > longest then  -- no client was promised that: the clock was set back
    redis.call('PEXPIRE', lock, longest)
  end
end
"""

RENEW = Script(f"""
{WHY_NOT}{LENGTHEN}
local held = {{}}
for i, lock in ipairs(KEYS) do
  local ttl, longest = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 2])
  local grant, evicted = ARGV[4 * i - 1], ARGV[4 * i]
  local value = redis.pcall('GET', lock)  -- pcall: a list there is no lock of ours
  if type(value) == 'string' and {_MINE.format("value", "grant")} then
    held[i] = 1
    lengthen(lock, ttl, longest)
  else
    held[i] = why_not(evicted, string.match(grant, '^[^:]*'))
  end
end
return held
""")
"""Any number of locks of one server; ttl, the longest ttl, ``TOKEN:FENCE`` and the key of evictions, of each.

Why one is not held is in the same answer: a second question could be lost, and the news with it. The key of evictions
is no key of the request: while a slot of a cluster moves, a request is refused of which some keys are not there."""

RELEASE = Script(f"""
{WHY_NOT}
local call, lock, queue, tickets, evicted = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token = ARGV[1]
local held, others = call('GET', lock), call('HLEN', tickets)
local ours = {_MINE.format("held", "token")}
if ours and others == 0 then
  call('DEL', lock)
  return 'held'
end
local why = 'held'
if not ours then why = why_not(evicted, token) end
if others > 0 then
  {NOW}{QUEUE}
  call('ZCARD', queue)  -- fails here, before the first write, if it is of another kind
  if ours then call('DEL', lock) end
  local waited = drop(token) == 1
  if ours then set_free() elseif waited and (not held or {SEVERAL.format("held")}) then hint() end
  tidy()
end
return why
""")
"""lock queue tickets evicted; token. Gives back a grant or a ticket, and wakes the next waiter if the lock is free."""

_MARK = """
redis.call('ZCARD', KEYS[2])  -- fails here, before the first write, if it is of another kind
local clock, left = redis.call('TIME'), tonumber(ARGV[2])
local till = string.format('%.0f', clock[1] * 1000000 + clock[2] + left * 1000)
local function lasts()
  if redis.call('PTTL', KEYS[3]) < left then redis.call('PEXPIRE', KEYS[3], left) end
end
lasts()  -- before there is a key, to be refused here, if the user may not do it
local at = clock[1] * 1000000 + clock[2]
local due = tonumber(redis.call('HGET', KEYS[3], '!!') or '0') or 0
if due <= at or due > tonumber(till) then  -- else those of a name that is always in use would become ever more
  local all = redis.call('HGETALL', KEYS[3])
  for i = 1, #all, 2 do
    local over = (tonumber(all[i + 1]) or 0) <= at
    if over and string.sub(all[i], 1, 1) == '!' then redis.call('HDEL', KEYS[3], all[i]) end
  end
  redis.call('HSET', KEYS[3], '!!', till)
end
redis.call('HSET', KEYS[3], '!' .. ARGV[1], till, '!', till)
if not redis.call('HGET', KEYS[3], '@') then redis.call('HSET', KEYS[3], '@', 0) end
lasts()
"""


def marking(release: Script) -> Script:
    """*release*, which then also refuses asks of the token that still arrive; for how many ms is one more argument."""
    return Script(_MARK + release.text)


EVICT = Script(f"""
local lock, queue, tickets, evicted = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local value = redis.call('GET', lock)
local token, held = string.match(value or '', '^dibs:([^:]*):(%d+):')
if held ~= ARGV[1] then return 0 end
{NOW}{QUEUE}{NOTE_EVICTION}
redis.call('ZCARD', queue)
redis.call('HLEN', tickets)  -- both only to fail here, if they are of another kind
redis.call('DEL', lock)  -- first, and allowed also when the memory is full; then what must not fail it
note_eviction(evicted, token, held, text(now), ARGV[2])
set_free()
return 1
""")
"""lock queue tickets evicted; fence, user and reason of the eviction."""

ATTACH = Script(f"""
local value, token = redis.call('GET', KEYS[1]), ARGV[1]
if not ({_MINE.format("value", "token")}) then return 0 end
local head = string.match(value, '^dibs:[^:]*:%d+:%d+:')
redis.call('SET', KEYS[1], head .. ARGV[2], 'PX', redis.call('PTTL', KEYS[1]))
return 1
""")
"""lock; token, facts. Writes new facts into the value, if the token holds the lock."""

SHOW = Script(f"""
local lock, fence, queue, tickets, evicted = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
{NOW}
return {{
  string.format('%.0f', now), redis.call('GET', lock), redis.call('PTTL', lock), redis.call('GET', fence),
  redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES'), redis.call('HGETALL', tickets), redis.call('GET', evicted),
  redis.call('ZRANGE', KEYS[7], 0, -1, 'WITHSCORES'), redis.call('HGETALL', KEYS[8])
}}
""")
"""All keys. Answers with all that is known of the lock, for people."""


def hinting(script: Script, *, sharded: bool) -> Script:
    """*script* as it hints in a cluster, where a node counts only its own listeners to the slot of the lock."""
    return script.using("'PUBLISH'", "'SPUBLISH'") if sharded else script
