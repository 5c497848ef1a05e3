-- tell_instance: write what an instance tells of itself. The first write removes, so that a full store takes it.
--
-- ARGV: the instance, what it tells
-- Returns 1.
local instances = KEYS[1]
local instance, told = ARGV[1], ARGV[2]

redis.call('HDEL', instances, instance)
redis.call('HSET', instances, instance, told)
return 1
