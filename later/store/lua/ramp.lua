-- ramp: record until when topics come back slowly, or have origins that are held. The first write removes.
--
-- ARGV: now, then for each topic: topic, until when
-- Returns 1. Entries that have passed are removed; of a topic's moments the latest counts.
local topics = KEYS[1]
local now = ARGV[1]

redis.call('ZREMRANGEBYSCORE', topics, '-inf', now)
for i = 2, #ARGV, 2 do redis.call('ZADD', topics, 'GT', ARGV[i + 1], ARGV[i]) end
return 1
