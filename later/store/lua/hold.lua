-- hold: let nothing of a topic be claimed before a moment. The first write removes.
--
-- ARGV: topic, the moment in ms ('inf': until the topic is resumed)
-- Returns 1.
--
-- Of two holds the longer one counts. `create` cannot lower a hold's entry (ZADD LT), no search for due topics finds
-- it, and a claim that is under way checks it. Like every topic that a wake set names, it is in the index of topics.
local wake, topics = KEYS[1], KEYS[2]
local topic, until_ = ARGV[1], tonumber(ARGV[2])

local for_rate = false
local entry = redis.call('ZSCORE', wake, topic)
if is_held(entry) and held_until(entry) > until_ then until_, for_rate = held_until(entry) end
redis.call('ZREM', wake, topic)
redis.call('ZADD', wake, hold_entry(until_, for_rate), topic)
redis.call('ZADD', topics, 0, topic)
return 1
