-- list: a stretch of one bucket, in its own order: by score, then by id. Changes nothing.
--
-- ARGV: the least score, the score that all are below, how many at most,
--       the score and the id of an entry that all come after ('' and '' for none; it need not be there any more)
-- Answers {id, score, ...}
local bucket = KEYS[1]
local since, before, count, after_score, after_id = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local first, last = ranks(bucket, since, before, after_score, after_id)
last = math.min(last, first + count - 1)
if last < first then return {} end
return redis.call('ZRANGE', bucket, first, last, 'WITHSCORES')
