-- take_census: take the census lock, or hold it for longer. The first write removes, so that it works in a full store.
--
-- ARGV: token of the caller, for how long (ms)
-- Returns 1 if the caller has the lock now, 0 if another has it.
local lock = KEYS[1]
local token, lease = ARGV[1], ARGV[2]

local holder = redis.call('HGET', lock, 'by')
if holder and holder ~= token then return 0 end
redis.call('DEL', lock)
redis.call('HSET', lock, 'by', token)
redis.call('PEXPIRE', lock, lease)
return 1
