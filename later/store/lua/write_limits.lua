-- state_limits: state by what daemons admit tasks, instead of what was stated before. The first write removes.
--
-- ARGV: the limits
-- Returns the limits stated before ('' if none were).
local meta = KEYS[1]
local limits = ARGV[1]

local before = redis.call('HGET', meta, 'admission')
if before == limits then return before end
redis.call('HDEL', meta, 'admission')
redis.call('HSET', meta, 'admission', limits)
return before or ''
