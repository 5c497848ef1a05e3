-- ramp: record when topics that come back slowly are at full speed. The first write removes.
--
-- ARGV: now, then for each topic: topic, when it is at full speed
-- Returns 1. Entries that have passed are removed; of a topic's moments the latest counts.
local ramps = KEYS[1]
local now = ARGV[1]

redis.call('ZREMRANGEBYSCORE', ramps, '-inf', now)
for i = 2, #ARGV, 2 do redis.call('ZADD', ramps, 'GT', ARGV[i + 1], ARGV[i]) end
return 1
