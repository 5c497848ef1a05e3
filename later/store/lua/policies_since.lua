-- policies_since: what was changed of the policies since a version. Changes nothing.
--
-- ARGV: the version that is known ('' for none)
-- Answers {version, 1 where all there is follows, 0 where only what was changed does, place, settings or nil, ...}
--
-- The latest changes are kept by place; whoever knows a version that is older than these is told everything, and so is
-- whoever knows one that this store never had.
local policies, changes = KEYS[1], KEYS[2]
local known = tonumber(ARGV[1])

local versions = redis.call('HMGET', policies, 'version', 'forgotten')
local version, forgotten = tonumber(versions[1] or 0), tonumber(versions[2] or 0)
if known == version then return {version, 0} end

local answer = {version, 1}
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
