-- rewake: one topic's wake entry, made right.
--
-- ARGV: topic, now
-- Answers 1: it was wrong and is mended, or 0: it was right and nothing was changed.
local bucket, wake = KEYS[1], KEYS[2]
local topic, now = ARGV[1], ARGV[2]

if wake_fault(wake, bucket, topic, now) == '' then return 0 end
rewake(wake, bucket, topic)
return 1
