-- keys_since: read the API keys if they have changed since a version. Read only.
--
-- KEYS: the keys
-- ARGV: the version that is known ('' for none)
-- Returns {version (0: there has never been a key), the time in ms, 1 if all keys follow, id, record, ...}
local keys = KEYS[1]

local time = redis.call('TIME')
local version = redis.call('HGET', keys, 'version') or '0'
local answer = {version_number(version), time[1] * 1000 + math.floor(time[2] / 1000), 1}
if ARGV[1] ~= '' and ARGV[1] == version then
  answer[3] = 0
  return answer
end
append_fields(answer, keys)
return answer
