-- set_policy: one place's settings, replaced or removed. Begins with a removal.
--
-- ARGV: place, the version that the new settings were made from, the settings ('' to remove them),
--       how many changes are to be known
-- Answers 1, or -1: there is another version by now, and nothing was changed.
--
-- A version is the time in µs, so that it stands for one history: two stores, or one that has lost its last changes,
-- do not come to the same.
local policies, changes = KEYS[1], KEYS[2]
local place, seen, settings, kept = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

if tonumber(redis.call('HGET', policies, 'version') or 0) ~= seen then return -1 end
redis.call('HDEL', policies, place)
local time = redis.call('TIME')
local version = string.format('%.0f', math.max(seen + 1, time[1] * 1000000 + time[2]))
redis.call('HSET', policies, 'version', version)
if settings ~= '' then redis.call('HSET', policies, place, settings) end
redis.call('ZADD', changes, version, place, version, 'version:' .. version)
local surplus = redis.call('ZCARD', changes) - 2 * kept
if surplus > 0 then redis.call('ZREMRANGEBYRANK', changes, 0, surplus - 1) end
return 1
