-- release: tasks of one topic whose lease ran out (unack) or whose pause is over (error), -> delay.
--
-- ARGV: topic, now, how many at most
-- Answers {the bucket's next score ('' where it is empty), how many moved}
--
-- Only scores that have passed; the due time becomes now, so that whoever waited longest in delay stays in front.
local bucket, delay, wake_bucket, wake_delay = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local topic, now, limit = ARGV[1], ARGV[2], ARGV[3]

redis.call('ZREM', wake_bucket, topic)
local ids = redis.call('ZRANGEBYSCORE', bucket, '-inf', now, 'LIMIT', 0, limit)
if #ids > 0 then
  redis.call('ZREM', bucket, unpack(ids))
  local dues = {}
  for _, id in ipairs(ids) do
    dues[#dues + 1] = now
    dues[#dues + 1] = id
  end
  redis.call('ZADD', delay, 'NX', unpack(dues))
  redis.call('ZADD', wake_delay, 'LT', now, topic)
end
return {rewake(wake_bucket, bucket, topic) or '', #ids}
