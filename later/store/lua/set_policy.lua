-- set_policy: one place's settings, replaced or removed.
--
-- ARGV: place, the version that the new settings were made from, the settings ('' to remove them),
--       how many places are to be known as changed last
-- Answers the new version, or -1: there is another version by now, and nothing was changed.
local policies, changes = KEYS[1], KEYS[2]
local place, seen, settings, kept = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

if tonumber(redis.call('HGET', policies, 'version') or 0) ~= seen then return -1 end
redis.call('HDEL', policies, place)
if settings ~= '' then redis.call('HSET', policies, place, settings) end
local version = redis.call('HINCRBY', policies, 'version', 1)
redis.call('ZADD', changes, version, place)
local surplus = redis.call('ZCARD', changes) - kept
if surplus > 0 then
  local oldest = redis.call('ZRANGE', changes, 0, surplus - 1, 'WITHSCORES')
  redis.call('HSET', policies, 'forgotten', oldest[#oldest])
  redis.call('ZREMRANGEBYRANK', changes, 0, surplus - 1)
end
return version
