-- resume: replace a topic's pause by a hold until a moment. The first write removes.
--
-- ARGV: topic, the moment in ms (if it has passed, the topic is claimed from now on)
-- Returns 1, or 0: the topic was not paused, nothing was changed.
local wake = KEYS[1]
local topic, until_ = ARGV[1], tonumber(ARGV[2])

local entry = redis.call('ZSCORE', wake, topic)
if not is_held(entry) or held_until(entry) ~= math.huge then return 0 end
redis.call('ZREM', wake, topic)
redis.call('ZADD', wake, hold_entry(until_, false), topic)
return 1
