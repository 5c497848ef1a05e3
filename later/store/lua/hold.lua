-- hold: nothing of a topic is claimed before a moment. Begins with a removal.
--
-- ARGV: topic, the moment ('inf': for as long as it is paused)
-- Answers 1.
--
-- A topic that is held stands in the wake set below zero, at minus that moment: no `create` lowers it (ZADD LT), no look
-- for due topics finds it, and a claim that was under way finds it there. Whichever lasts longer counts.
-- (One that is held for the sake of its rate stands half a millisecond above: see `claim`.)
local wake = KEYS[1]
local topic, until_ = ARGV[1], tonumber(ARGV[2])

local entry = tonumber(redis.call('ZSCORE', wake, topic) or 0)
redis.call('ZREM', wake, topic)
redis.call('ZADD', wake, math.min(entry, -until_) == -math.huge and '-inf' or math.min(entry, -until_), topic)
return 1
