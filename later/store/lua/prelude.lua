-- What every verb shares. scripts.py puts it in front of each of them.
--
-- Each verb that may run in a store at maxmemory writes first by a removal: Redis lets a script go on
-- once it has begun to write, and a removal is a write that it always allows.

-- The topic's wake entry becomes the first score of its bucket, or goes where the bucket is empty.
-- Answers that score, or nil.
local function rewake(wake, bucket, topic)
  redis.call('ZREM', wake, topic)
  local first = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')[2]
  if first then redis.call('ZADD', wake, first, topic) end
  return first
end

-- The task's begun deliveries and the fence of its current lease, from its entry in `attempts`.
local function begun_and_fence(entry)
  if not entry then return 0, nil end
  local begun, fence = string.match(entry, '^(%d+) (%d+)$')
  return tonumber(begun) or 0, fence
end
