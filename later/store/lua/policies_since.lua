-- policies_since: read what has changed in the policies since a version. Read only.
--
-- ARGV: the version that is known ('' for none)
-- Returns {version, 1 if all policies follow, 0 if only the changed ones do,
--          {topic, when it is at full speed again, ...}, {topic, when the last hold of one of its origins ends, ...},
--          scope, settings or nil, ...}
--
-- The latest changes are kept: each scope, and each version. A version that is not among them is answered with all
-- policies: it is too old, or comes from a store that has lost its last changes.
local policies, changes, ramps, origins = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known = ARGV[1]

local time = redis.call('TIME')[1] * 1000
local now = string.format('%.0f', time)
local ramping = redis.call('ZRANGE', ramps, now, '+inf', 'BYSCORE', 'WITHSCORES')
local holding = redis.call('ZRANGE', origins, now, '+inf', 'BYSCORE', 'WITHSCORES')
local version = redis.call('HGET', policies, 'version') or '0'
if known == version then return {tonumber(version), 0, ramping, holding} end

local answer = {tonumber(version), 1, ramping, holding}
if known == '' or not redis.call('ZSCORE', changes, 'version:' .. known) then
  append_fields(answer, policies)
  return answer
end
answer[2] = 0
for _, scope in ipairs(redis.call('ZRANGEBYSCORE', changes, '(' .. known, '+inf')) do
  if string.sub(scope, 1, 8) ~= 'version:' then
    answer[#answer + 1] = scope
    answer[#answer + 1] = redis.call('HGET', policies, scope)
  end
end
return answer
