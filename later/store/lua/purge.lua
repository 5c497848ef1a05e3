-- purge: remove tasks of one topic from one bucket. The settle of a task that was in flight finds no lease.
--
-- ARGV: topic, least score, '(' and the score that all are below, maximum number of tasks
-- Returns how many it removed. Tasks are taken in the order of the bucket and no body is read, so that a call is short.
local pool, attempts, outcome, expiry, bucket, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local topic, since, before, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local ids = redis.call('ZRANGEBYSCORE', bucket, since, before, 'LIMIT', 0, limit)
if #ids == 0 then return 0 end

local members = {}
for n, id in ipairs(ids) do members[n] = expiry_member(topic, id) end
redis.call('ZREM', bucket, unpack(ids))
for _, hash in ipairs({pool, attempts, outcome}) do redis.call('HDEL', hash, unpack(ids)) end
redis.call('ZREM', expiry, unpack(members))
refresh_wake_keeping_turn(wake, bucket, topic)
return #ids
