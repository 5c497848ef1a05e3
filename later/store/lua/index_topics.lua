-- index_topics: put the entries of some topics in the index right. The first write removes.
--
-- KEYS: index of topics, the four wake sets
-- ARGV: topics
-- Returns how many entries were wrong.
--
-- A topic belongs in the index while a wake set names it. What is right is not written: workers check all the time.
local index = KEYS[1]

local used, wrong, missing = {}, {}, {}
for i = 2, 5 do
  for n, entry in ipairs(redis.call('ZMSCORE', KEYS[i], unpack(ARGV))) do used[n] = used[n] or entry end
end
for n, entry in ipairs(redis.call('ZMSCORE', index, unpack(ARGV))) do
  if not used[n] ~= not entry then wrong[#wrong + 1] = ARGV[n] end
  if used[n] and not entry then
    missing[#missing + 1] = 0
    missing[#missing + 1] = ARGV[n]
  end
end

if #wrong > 0 then redis.call('ZREM', index, unpack(wrong)) end
if #missing > 0 then redis.call('ZADD', index, unpack(missing)) end
return #wrong
