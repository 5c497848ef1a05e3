-- hold_origin: let no tasks of a topic be delivered to an origin before a moment. The first write removes.
--
-- ARGV: now, origin, the moment in ms, how many holds a topic may have
-- Returns the moment at which the last hold of the topic ends.
--
-- Holds that have ended are removed. Of two holds of an origin the longer one counts. Of too many holds, those that end
-- first are dropped. The key is kept until all of them have ended: later its loss would cost nothing.
local holds = KEYS[1]
local now, origin, until_, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

redis.call('ZREMRANGEBYSCORE', holds, '-inf', now)
redis.call('ZADD', holds, 'GT', until_, origin)
redis.call('ZREMRANGEBYRANK', holds, 0, -most - 1)
local last = string.format('%.0f', redis.call('ZRANGE', holds, -1, -1, 'WITHSCORES')[2])
redis.call('PEXPIRE', holds, string.format('%.0f', last - now))
return tonumber(last)
