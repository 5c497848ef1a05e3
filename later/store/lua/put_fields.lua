-- put_fields: write fields of a hash that have no value yet.
--
-- KEYS: the hash; of policies also their changes
-- ARGV: '1' if the hash has a version ('0': it has none), how many changes to remember, then field, value, ...
-- Returns for each field 1: written; 0: it is there.
--
-- A new version tells processes that read the hash before to read it again: see set_policy. A version may itself be
-- written where there is none, because that of API keys says that there have been some. The first write adds, so a store
-- at maxmemory refuses the call.
local hash, changes = KEYS[1], KEYS[2]
local is_versioned, kept = ARGV[1] == '1', tonumber(ARGV[2])

local answers, written = {}, {}
for i = 3, #ARGV, 2 do
  local is_new = redis.call('HSETNX', hash, ARGV[i], ARGV[i + 1]) == 1
  answers[#answers + 1] = is_new and 1 or 0
  if is_new then written[#written + 1] = ARGV[i] end
end
if #written == 0 or not is_versioned then return answers end

local time, seen = redis.call('TIME'), tonumber(redis.call('HGET', hash, 'version') or 0) or 0
local version = string.format('%.0f', math.max(seen + 1, time[1] * 1000000 + time[2]))
redis.call('HSET', hash, 'version', version)
if not changes then return answers end
for _, scope in ipairs(written) do redis.call('ZADD', changes, version, scope) end
redis.call('ZADD', changes, version, 'version:' .. version)
local surplus = redis.call('ZCARD', changes) - 2 * kept
if surplus > 0 then redis.call('ZREMRANGEBYRANK', changes, 0, surplus - 1) end
return answers
