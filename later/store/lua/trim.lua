-- trim: forget the ids that were remembered long enough.
--
-- ARGV: now, maximum number of ids
-- Returns how many it forgot.
local done = KEYS[1]
local now, limit = ARGV[1], ARGV[2]

local ids = redis.call('ZRANGEBYSCORE', done, '-inf', now, 'LIMIT', 0, limit)
if #ids > 0 then redis.call('ZREM', done, unpack(ids)) end
return #ids
