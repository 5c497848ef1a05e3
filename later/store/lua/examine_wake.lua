-- examine_wake: check one topic's wake entry. Read only.
--
-- ARGV: topic, now
-- Returns 'missing', 'stale', 'wrong', or '' if it is right.
return wake_fault(KEYS[2], KEYS[1], ARGV[1], ARGV[2])
