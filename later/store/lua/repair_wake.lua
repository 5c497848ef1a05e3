-- repair_wake: put one topic's wake entry right.
--
-- ARGV: topic, now
-- Returns 1: it was wrong and is repaired, or 0: it was right, nothing was changed.
local bucket, wake = KEYS[1], KEYS[2]
local topic, now = ARGV[1], ARGV[2]

if wake_fault(wake, bucket, topic, now) == '' then return 0 end
refresh_wake(wake, bucket, topic)
return 1
