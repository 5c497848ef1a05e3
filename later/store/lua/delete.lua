-- delete: tasks of one topic, from whatever bucket, -> gone, and forgotten.
--
-- ARGV: topic, then for each task: id, the body that was read
-- Answers for each task 1: deleted, or 0: the pool holds another body by now, and nothing was changed.
--
-- A delivery under way cannot be called back, but its settle finds no lease.
local pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3]
local topic = ARGV[1]

local ids = {}
for i = 2, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local bodies = redis.call('HMGET', pool, unpack(ids))

local answers, same, touched = {}, {}, {}
for n, id in ipairs(ids) do
  answers[n] = bodies[n] == ARGV[n * 2 + 1] and 1 or 0
  if answers[n] == 1 then same[#same + 1] = id end
end
if #same > 0 then
  for _, hash in ipairs({pool, attempts, outcome}) do redis.call('HDEL', hash, unpack(same)) end
  for bucket = 4, 7 do touched[bucket] = redis.call('ZREM', KEYS[bucket], unpack(same)) > 0 or nil end
end
for bucket in pairs(touched) do
  local wake = KEYS[bucket + 4]
  -- A topic that was served and waits for its next turn keeps its place: its entry lies after its first score.
  local first = redis.call('ZRANGE', KEYS[bucket], 0, 0, 'WITHSCORES')[2]
  local entry = redis.call('ZSCORE', wake, topic)
  if not first or not entry or tonumber(first) > tonumber(entry) then rewake(wake, KEYS[bucket], topic) end
end
return answers
