-- set_keys: write or remove API keys. The first write removes.
--
-- KEYS: the keys, when each was used last
-- ARGV: the version that the change was made from, then for each key: its id, its record ('' to remove it)
-- Returns 1, or -1: there is another version by now, nothing was changed.
--
-- A version is the time in us, so that it stands for one history: two stores, or one that has lost its last changes,
-- do not arrive at the same version. It stays when the last key is removed: the store has had keys.
local keys, used = KEYS[1], KEYS[2]
local seen = tonumber(ARGV[1])

if version_number(redis.call('HGET', keys, 'version') or 0) ~= seen then return -1 end
for i = 2, #ARGV, 2 do
  redis.call('HDEL', keys, ARGV[i])
  if ARGV[i + 1] == '' then redis.call('HDEL', used, ARGV[i], 'ended:' .. ARGV[i]) end
end
local time = redis.call('TIME')
redis.call('HSET', keys, 'version', string.format('%.0f', math.max(seen + 1, time[1] * 1000000 + time[2])))
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then redis.call('HSET', keys, ARGV[i], ARGV[i + 1]) end
end
return 1
