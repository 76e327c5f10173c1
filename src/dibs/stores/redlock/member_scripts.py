"""What a node of a Redlock knows of itself, and the Lua that asks for it or changes it: does it vote, and with whom?

It is one key, shared by all locks: a hash that says

- ``id``: who it is, made at the first contact, and ``run``: which run of its server we knew;
- ``set`` and ``size``: to which nodes it belongs. Without it the node does not vote: it is new, or it lost its memory;
- ``floor``: no fence is given out that is not above it; ``highest``: none that any lock ever had here is above that;
- ``longest``: the longest ttl in ms it was ever asked for;
- ``away``: that its server was restarted, with an old memory perhaps; ``back``: since when it is known not to vote.

The floor stands for the fences of all locks that the node has forgotten, so one number brings them back.
"""

from __future__ import annotations

from dibs.stores.redis.port.command import Script
from dibs.stores.redis.scripts import NOW, TEXT

NODE = b"dibs:redlock:node"
"""The key."""

_RUN = """
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
"""

HELLO = Script(f"""
local node = KEYS[1]
local named = redis.pcall('HSETNX', node, 'id', ARGV[1])
if type(named) == 'table' and named.err then
  if not string.find(named.err, 'WRONGTYPE') then return named end
  return redis.error_reply('WRONGTYPE ' .. node .. ' has to be the hash in which a node of a Redlock keeps its mark')
end
{_RUN}
local known = redis.call('HGET', node, 'run') or ''
if run ~= known and run ~= '' then
  redis.call('HSET', node, 'run', run)
  if known ~= '' and ARGV[2] ~= 'durable' then
    redis.call('HDEL', node, 'set', 'back')
    redis.call('HSET', node, 'away', 1, 'id', ARGV[1])  -- an id of its own: its memory may be a copy of another's
  end
end
return run
""")
"""node; an id for a node that has none, and 'durable' if what a node has answered is on its disk.

The first thing that is said on every connection, so that nothing is asked of a server that came back, with an old
memory perhaps, before it is known to have been away."""

STATE = Script(f"""
local of = redis.call('HMGET', KEYS[1], 'id', 'run', 'set', 'size', 'floor', 'highest', 'longest', 'back', 'away')
{NOW}{TEXT}
if ARGV[1] ~= 'look' and not of[1] then
  {_RUN}
  redis.call('HSET', KEYS[1], 'id', ARGV[2], 'run', run)
  of[1], of[2] = ARGV[2], run
end
if ARGV[1] ~= 'note' or of[3] or of[8] then return {{text(now), unpack(of, 1, 9)}} end
redis.call('HSET', KEYS[1], 'back', text(now))
of[8] = text(now)
return {{text(now), unpack(of, 1, 9)}}
""")
"""node; 'look', 'meet' or 'note', and an id.

A node that forgot who it is while connections stayed (FLUSHALL, SWAPDB) is given the id, unless it is only looked at.
'note' begins the wait of a node without a memory."""

JOIN = Script(f"""
local node = KEYS[1]
local of = redis.call('HMGET', node, 'set', 'back', 'floor', 'highest', 'longest', 'id')
if of[1] == ARGV[1] then return 1 end
if of[1] or of[6] ~= ARGV[5] or (of[2] or '') ~= ARGV[6] then return 0 end  -- it forgot once more, or was let in
local floor = math.max(tonumber(of[3]) or 0, tonumber(ARGV[3]))
local longest = math.max(tonumber(of[5]) or 0, tonumber(ARGV[4]))
local highest = math.max(tonumber(of[4]) or 0, floor)
{TEXT}
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
