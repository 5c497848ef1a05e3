-- policies_since: read what has changed in the policies since a version. Read only.
--
-- ARGV: the version that is known ('' for none), how many settings may follow where all must be read
-- Returns {version, 0 if the changed settings follow, 1 if all do, 2 if all must be read but are too many to follow,
--          how many there are, {topic, when it is at full speed again, ...},
--          {topic, when the last hold of one of its origins ends, ...}, scope, settings or nil, ...}
--
-- The latest changes are kept: each scope, and each version. A version that is not among them is answered with all
-- policies: it is too old, or comes from a store that has lost its last changes.
local policies, changes, ramps, origins = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known, most = ARGV[1], tonumber(ARGV[2])

local time = redis.call('TIME')[1] * 1000
local now = string.format('%.0f', time)
local ramping = redis.call('ZRANGE', ramps, now, '+inf', 'BYSCORE', 'WITHSCORES')
local holding = redis.call('ZRANGE', origins, now, '+inf', 'BYSCORE', 'WITHSCORES')
local version = redis.call('HGET', policies, 'version')
local count = redis.call('HLEN', policies) - (version and 1 or 0)
version = version or '0'
local answer = {tonumber(version), 0, count, ramping, holding}
if known == version then return answer end

if known == '' or not redis.call('ZSCORE', changes, 'version:' .. known) then
  answer[2] = count > most and 2 or 1
  if answer[2] == 1 then append_fields(answer, policies) end
  return answer
end
for _, scope in ipairs(redis.call('ZRANGEBYSCORE', changes, '(' .. known, '+inf')) do
  if string.sub(scope, 1, 8) ~= 'version:' then
    answer[#answer + 1] = scope
    answer[#answer + 1] = redis.call('HGET', policies, scope)
  end
end
return answer
