-- topic_state: read a topic's wake entry and first due time in one shard. Read only.
--
-- ARGV: topic
-- Returns {its wake entry in delay, the first due time there}, '' for what is missing.
local delay, wake = KEYS[1], KEYS[2]

return {redis.call('ZSCORE', wake, ARGV[1]) or '', redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')[2] or ''}
