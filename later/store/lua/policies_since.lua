-- policies_since: what was changed of the policies since a version. Changes nothing.
--
-- ARGV: the version that is known ('' for none)
-- Answers {version, 1 where all there is follows, 0 where only what was changed does,
--          {topic, when it is at full speed again, ...}, place, settings or nil, ...}
--
-- The latest changes are kept: each place, and each version. Whoever knows a version that is not among these is told
-- everything: it is too old, or was of a store that has lost its last changes since.
local policies, changes, ramps = KEYS[1], KEYS[2], KEYS[3]
local known = ARGV[1]

local time = redis.call('TIME')[1] * 1000
local ramping = redis.call('ZRANGE', ramps, string.format('%.0f', time), '+inf', 'BYSCORE', 'WITHSCORES')
local version = redis.call('HGET', policies, 'version') or '0'
if known == version then return {tonumber(version), 0, ramping} end

local answer = {tonumber(version), 1, ramping}
if known == '' or not redis.call('ZSCORE', changes, 'version:' .. known) then
  local all = redis.call('HGETALL', policies)
  for i = 1, #all, 2 do
    if all[i] ~= 'version' then
      answer[#answer + 1] = all[i]
      answer[#answer + 1] = all[i + 1]
    end
  end
  return answer
end
answer[2] = 0
for _, place in ipairs(redis.call('ZRANGEBYSCORE', changes, '(' .. known, '+inf')) do
  if string.sub(place, 1, 8) ~= 'version:' then
    answer[#answer + 1] = place
    answer[#answer + 1] = redis.call('HGET', policies, place)
  end
end
return answer
