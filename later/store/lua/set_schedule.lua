-- set_schedule: put, change or remove one schedule, unless it has changed since it was read.
--
-- KEYS: schedules, states of schedules, firings, index of schedules
-- ARGV: schedule, its definition and its state as they were read ('' and '' for none), its definition and its state from
--       now on ('' and '': it is removed), when it fires next ('' for not at all), its member in the index before and
--       from now on ('' for none), how many schedules the shard may have
-- Returns 1; 0: it has changed meanwhile; -1: the shard has as many schedules as it may have. Then nothing is changed.
--
-- A new definition is written first, so a store at maxmemory refuses it. All else begins with a removal.
local schedules, states, firings, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, definition, state, new_definition, new_state, next_at, member, new_member, limit = unpack(ARGV)

if (redis.call('HGET', schedules, id) or '') ~= definition then return 0 end
if (redis.call('HGET', states, id) or '') ~= state then return 0 end
local is_new = definition == '' and new_definition ~= ''
if is_new and redis.call('HLEN', schedules) >= tonumber(limit) then return -1 end

if new_definition ~= '' and new_definition ~= definition then redis.call('HSET', schedules, id, new_definition) end
redis.call('ZREM', firings, id)
if member ~= '' and member ~= new_member then redis.call('ZREM', index, member) end
if new_definition == '' then
  redis.call('HDEL', schedules, id)
  redis.call('HDEL', states, id)
  return 1
end
redis.call('HSET', states, id, new_state)
if next_at ~= '' then redis.call('ZADD', firings, next_at, id) end
redis.call('ZADD', index, 0, new_member)
return 1
