-- ramp: topics that come back to full speed, and when they will be there. Begins with a removal.
--
-- ARGV: now, then for each topic: topic, when it is at full speed
-- Answers 1. Those that are there by now are forgotten; of a topic's moments the latest counts.
local ramps = KEYS[1]
local now = ARGV[1]

redis.call('ZREMRANGEBYSCORE', ramps, '-inf', now)
for i = 2, #ARGV, 2 do redis.call('ZADD', ramps, 'GT', ARGV[i + 1], ARGV[i]) end
return 1
