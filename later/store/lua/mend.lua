-- mend: one id into exactly one bucket, or out of all of them.
--
-- KEYS: pool, attempts, outcome, then all buckets, then their wake sets in the same order
-- ARGV: id, the body that was seen ('' for none), the index of the bucket to be in (0: none), the score there,
--       then the topics of the buckets, in their order
-- Answers 1: mended, or 0: the pool holds another body by now, and nothing was changed.
--
-- An entry that is in the right bucket already keeps its score.
local pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3]
local id, body, home, score = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local buckets = (#KEYS - 3) / 2

if (redis.call('HGET', pool, id) or '') ~= body then return 0 end
for i = 1, buckets do
  local bucket, wake, topic = KEYS[3 + i], KEYS[3 + buckets + i], ARGV[4 + i]
  local changed
  if i == home then
    changed = redis.call('ZADD', bucket, 'NX', score, id) == 1
  else
    changed = redis.call('ZREM', bucket, id) == 1
  end
  if changed then rewake(wake, bucket, topic) end
end
if home == 0 then
  redis.call('HDEL', attempts, id)
  redis.call('HDEL', outcome, id)
end
return 1
