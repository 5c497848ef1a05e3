-- count_batch: counts a batch into its job, once, whatever was sent twice.
--
-- ARGV: job, when it may be forgotten,
--       the batch's digest, how many of its items are valid (created or found existing), how many refused
-- Answers 1.
--
-- What was counted under the digest before is replaced. What was created is counted by `create` itself; what was found
-- existing is what is valid and was not created.
-- It begins with an addition, like `create`, with which it is sent: a store at maxmemory refuses both.
local counts, jobs = KEYS[1], KEYS[2]
local job, forget_at, digest, valid, refused = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local before = redis.call('HGET', counts, digest)
local valid_before, refused_before = string.match(before or '0 0', '^(%d+) (%d+)$')
redis.call('HSET', counts, digest, valid .. ' ' .. refused)
redis.call('HINCRBY', counts, 'valid', valid - valid_before)
redis.call('HINCRBY', counts, 'refused', refused - refused_before)
redis.call('ZADD', jobs, 'GT', forget_at, job)
return 1
