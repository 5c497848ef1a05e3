-- delete: tasks of one topic, from whatever bucket, -> gone, and forgotten.
--
-- ARGV: topic, then for each task: id, the body that was read
-- Answers for each task 1: deleted, or 0: the pool holds another body by now, and nothing was changed.
--
-- A delivery under way cannot be called back, but its settle finds no lease.
local pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3]
local topic = ARGV[1]

local answers, touched = {}, {}
for i = 2, #ARGV, 2 do
  local id, body = ARGV[i], ARGV[i + 1]
  local same = redis.call('HGET', pool, id) == body
  answers[#answers + 1] = same and 1 or 0
  if same then
    redis.call('HDEL', pool, id)
    redis.call('HDEL', attempts, id)
    redis.call('HDEL', outcome, id)
    for bucket = 4, 7 do
      if redis.call('ZREM', KEYS[bucket], id) == 1 then touched[bucket] = true end
    end
  end
end
for bucket in pairs(touched) do
  local wake = KEYS[bucket + 4]
  -- A topic that was served and waits for its next turn keeps its place: its entry lies after its first score.
  local first = redis.call('ZRANGE', KEYS[bucket], 0, 0, 'WITHSCORES')[2]
  local entry = redis.call('ZSCORE', wake, topic)
  if not first or not entry or tonumber(first) > tonumber(entry) then rewake(wake, KEYS[bucket], topic) end
end
return answers
