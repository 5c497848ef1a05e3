-- examine_wake: what is wrong with one topic's wake entry. Changes nothing.
--
-- ARGV: topic, now
-- Answers 'missing', 'stale', 'wrong' or ''.
return wake_fault(KEYS[2], KEYS[1], ARGV[1], ARGV[2])
