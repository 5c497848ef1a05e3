-- standing: how a topic stands in one shard. Changes nothing.
--
-- ARGV: topic
-- Answers {its wake entry in delay, the first due time there}, '' for what is not there.
local delay, wake = KEYS[1], KEYS[2]

return {redis.call('ZSCORE', wake, ARGV[1]) or '', redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')[2] or ''}
