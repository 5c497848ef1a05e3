-- index_topics: put the entries of some topics in the index right. The first write removes.
--
-- KEYS: index of topics, the four wake sets
-- ARGV: topics
-- Returns how many of them are in the index now.
--
-- A topic belongs in the index while a wake set names it.
local used, entries = {}, {}
for i = 2, 5 do
  for n, entry in ipairs(redis.call('ZMSCORE', KEYS[i], unpack(ARGV))) do used[n] = used[n] or entry end
end
for n, topic in ipairs(ARGV) do
  if used[n] then
    entries[#entries + 1] = 0
    entries[#entries + 1] = topic
  end
end

redis.call('ZREM', KEYS[1], unpack(ARGV))
return #entries == 0 and 0 or redis.call('ZADD', KEYS[1], unpack(entries))
