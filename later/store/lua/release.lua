-- release: move tasks of one topic whose lease expired (unack) or whose retry pause ended (error), -> delay.
--
-- ARGV: topic, now, maximum number of tasks
-- Returns {the bucket's next score ('' if it is empty), how many were moved}
--
-- The due time becomes now, so that tasks that waited longer in delay stay in front.
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
return {refresh_wake(wake_bucket, bucket, topic) or '', #ids}
