-- purge: tasks of one topic in one bucket where nothing is in flight, delay, error or dead -> gone, and forgotten.
--
-- ARGV: topic, the least score, '(' and the score that all are below, how many at most
-- Answers how many it removed. They are taken as they stand in the bucket, and no body is read: so a whole slice is short.
local pool, attempts, outcome, expiry, bucket, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local topic, since, before, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local ids = redis.call('ZRANGEBYSCORE', bucket, since, before, 'LIMIT', 0, limit)
if #ids == 0 then return 0 end

local members = {}
for n, id in ipairs(ids) do members[n] = expiring(topic, id) end
redis.call('ZREM', bucket, unpack(ids))
for _, hash in ipairs({pool, attempts, outcome}) do redis.call('HDEL', hash, unpack(ids)) end
redis.call('ZREM', expiry, unpack(members))
rewake_in_line(wake, bucket, topic)
return #ids
