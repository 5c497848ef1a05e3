-- origin_holds: read the holds of a topic's origins, and remove those that have ended.
--
-- ARGV: now
-- Returns {origin, when its hold ends, ...}
local holds = KEYS[1]

redis.call('ZREMRANGEBYSCORE', holds, '-inf', ARGV[1])
return redis.call('ZRANGE', holds, 0, -1, 'WITHSCORES')
