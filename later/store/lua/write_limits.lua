-- write_limits: replace the limits by which daemons admit tasks. The first write removes.
--
-- ARGV: the limits
-- Returns the limits before ('' if there were none).
local meta = KEYS[1]
local limits = ARGV[1]

local before = redis.call('HGET', meta, 'admission')
if before == limits then return before end
redis.call('HDEL', meta, 'admission')
redis.call('HSET', meta, 'admission', limits)
return before or ''
