-- forget_topic: remove the wake entries of a topic that has no tasks in one shard, a hold too, and its entry in the
-- index of topics. The first write removes.
--
-- KEYS: index of topics, the four wake sets, the topic's four buckets
-- ARGV: topic
-- Returns 1, or 0: a bucket has tasks, nothing was changed.
local topic = ARGV[1]

if redis.call('EXISTS', KEYS[6], KEYS[7], KEYS[8], KEYS[9]) > 0 then return 0 end
for i = 1, 5 do redis.call('ZREM', KEYS[i], topic) end
return 1
