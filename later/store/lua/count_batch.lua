-- count_batch: count a batch into its job, once, however often it is sent.
--
-- ARGV: job, when the job may be forgotten,
--       digest of the batch, number of its valid items (created or existing), number of its refused items
-- Returns 1.
--
-- A count under the same digest is replaced. `create` itself counts what it creates; existing items are the valid ones
-- that were not created.
-- The first write adds, as in `create`, with which this is sent: a store at maxmemory refuses both.
local counts, jobs = KEYS[1], KEYS[2]
local job, forget_at, digest, valid, refused = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local before = redis.call('HGET', counts, digest)
local valid_before, refused_before = string.match(before or '0 0', '^(%d+) (%d+)$')
redis.call('HSET', counts, digest, valid .. ' ' .. refused)
redis.call('HINCRBY', counts, 'valid', valid - valid_before)
redis.call('HINCRBY', counts, 'refused', refused - refused_before)
redis.call('ZADD', jobs, 'GT', forget_at, job)
return 1
