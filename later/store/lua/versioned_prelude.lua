-- A function that some scripts share: scripts.py puts this file between the prelude and each of them.

-- Append all fields of a hash to an answer, each with its value, but not the hash's version.
local function append_fields(answer, hash)
  local all = redis.call('HGETALL', hash)
  for i = 1, #all, 2 do
    if all[i] ~= 'version' then
      answer[#answer + 1] = all[i]
      answer[#answer + 1] = all[i + 1]
    end
  end
end
