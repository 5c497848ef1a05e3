-- resume: a topic that was held for as long as it is paused is held until a moment instead. Begins with a removal.
--
-- ARGV: topic, the moment (one that has passed: from now on it is claimed)
-- Answers 1, or 0: it was not held so, and nothing was changed.
local wake = KEYS[1]
local topic, until_ = ARGV[1], ARGV[2]

if tonumber(redis.call('ZSCORE', wake, topic) or 0) ~= -math.huge then return 0 end
redis.call('ZREM', wake, topic)
redis.call('ZADD', wake, -until_, topic)
return 1
