-- policies_since: what was changed of the policies since a version. Changes nothing.
--
-- ARGV: the version that is known ('' for none)
-- Answers {version, 1 where all there is follows, 0 where only what was changed does,
--          {topic, when it is at full speed again, ...}, place, settings or nil, ...}
--
-- The latest changes are kept by place; whoever knows a version that is older than these is told everything, and so is
-- whoever knows one that this store never had.
local policies, changes, ramps = KEYS[1], KEYS[2], KEYS[3]
local known = tonumber(ARGV[1])

local versions = redis.call('HMGET', policies, 'version', 'forgotten')
local version, forgotten = tonumber(versions[1] or 0), tonumber(versions[2] or 0)
local time = redis.call('TIME')[1] * 1000
local ramping = redis.call('ZRANGE', ramps, string.format('%.0f', time), '+inf', 'BYSCORE', 'WITHSCORES')
if known == version then return {version, 0, ramping} end

local answer = {version, 1, ramping}
if not known or known < forgotten or known > version then
  local all = redis.call('HGETALL', policies)
  for i = 1, #all, 2 do
    if all[i] ~= 'version' and all[i] ~= 'forgotten' then
      answer[#answer + 1] = all[i]
      answer[#answer + 1] = all[i + 1]
    end
  end
  return answer
end
answer[2] = 0
for _, place in ipairs(redis.call('ZRANGEBYSCORE', changes, '(' .. known, '+inf')) do
  answer[#answer + 1] = place
  answer[#answer + 1] = redis.call('HGET', policies, place)
end
return answer
