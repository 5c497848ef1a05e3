-- set_signing: replace the generations of signing secrets. The first write removes.
--
-- ARGV: the version that they were made from, then scope, generations, ...
-- Returns 1, or -1: there is another version by now, nothing was changed.
--
-- A version is the time in us, as in set_policy.
local signing = KEYS[1]
local seen = tonumber(ARGV[1])

if tonumber(redis.call('HGET', signing, 'version') or 0) ~= seen then return -1 end
redis.call('HDEL', signing, ARGV[2])
local time = redis.call('TIME')
local version = string.format('%.0f', math.max(seen + 1, time[1] * 1000000 + time[2]))
redis.call('HSET', signing, 'version', version)
for i = 2, #ARGV, 2 do redis.call('HSET', signing, ARGV[i], ARGV[i + 1]) end
return 1
