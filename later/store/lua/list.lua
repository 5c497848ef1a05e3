-- list: read a range of one bucket in its own order: by score, then by id. Read only.
--
-- ARGV: least score, score that all are below, maximum number of entries,
--       score and id of an entry that all come after ('' and '' for none; the entry need not exist)
-- Returns {id, score, ...}
local bucket = KEYS[1]
local since, before, count, after_score, after_id = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local first, last = rank_range(bucket, since, before, after_score, after_id)
last = math.min(last, first + count - 1)
if last < first then return {} end
return redis.call('ZRANGE', bucket, first, last, 'WITHSCORES')
