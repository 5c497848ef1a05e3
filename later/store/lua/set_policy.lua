-- set_policy: replace or remove the settings of one scope, and the metadata of its queue. The first write removes.
--
-- ARGV: scope, the version that the new settings were made from, the settings ('' to remove them),
--       how many changes to remember, the topic of the queue ('' to leave all metadata as they are),
--       the metadata ('' to remove them)
-- Returns 1, or -1: there is another version by now, nothing was changed.
--
-- A version is the time in us, so that it stands for one history: two stores, or one that has lost its last changes,
-- do not arrive at the same version. It is that of the metadata, too.
local policies, changes, queues = KEYS[1], KEYS[2], KEYS[3]
local scope, seen, settings, kept = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local topic, metadata = ARGV[5], ARGV[6]

if tonumber(redis.call('HGET', policies, 'version') or 0) ~= seen then return -1 end
redis.call('HDEL', policies, scope)
local time = redis.call('TIME')
local version = string.format('%.0f', math.max(seen + 1, time[1] * 1000000 + time[2]))
redis.call('HSET', policies, 'version', version)
if settings ~= '' then redis.call('HSET', policies, scope, settings) end
if topic ~= '' then redis.call('HDEL', queues, topic) end
if metadata ~= '' then redis.call('HSET', queues, topic, metadata) end
redis.call('ZADD', changes, version, scope, version, 'version:' .. version)
local surplus = redis.call('ZCARD', changes) - 2 * kept
if surplus > 0 then redis.call('ZREMRANGEBYRANK', changes, 0, surplus - 1) end
return 1
