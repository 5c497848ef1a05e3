-- not_in_one_bucket: find the ids that are not in exactly one of their topic's four buckets. Read only.
--
-- KEYS: the four buckets of each topic
-- ARGV: for each topic, how many ids, then the ids
-- Returns these ids
local missed = {}
local at = 1
for first = 1, #KEYS, 4 do
  local from, to = at + 1, at + tonumber(ARGV[at])
  local seen = {}
  for bucket = first, first + 3 do
    for i, score in ipairs(redis.call('ZMSCORE', KEYS[bucket], unpack(ARGV, from, to))) do
      if score then seen[i] = (seen[i] or 0) + 1 end
    end
  end
  for i = from, to do
    if seen[i - at] ~= 1 then missed[#missed + 1] = ARGV[i] end
  end
  at = to + 1
end
return missed
