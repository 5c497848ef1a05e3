-- count_batch: counts a batch into its job, once, whatever was sent twice.
--
-- ARGV: job, when it may be forgotten,
--       the batch's digest, how many of its items were valid (created or found existing), how many refused
-- Answers 1.
--
-- A batch that comes again counts only by how much more of it went through this time. What was created is counted by
-- `create` itself; what was found existing is what was valid and not created.
local counts, jobs = KEYS[1], KEYS[2]
local job, forget_at, digest, valid, refused = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local before = redis.call('HGET', counts, digest)
local valid_before, refused_before = string.match(before or '0 0', '^(%d+) (%d+)$')
valid_before, refused_before = tonumber(valid_before), tonumber(refused_before)
local more_valid = math.max(valid - valid_before, 0)
local more_refused = math.max(refused - refused_before, 0)
if more_valid + more_refused > 0 or not before then
  redis.call('HSET', counts, digest,
    string.format('%.0f %.0f', valid_before + more_valid, refused_before + more_refused))
  redis.call('HINCRBY', counts, 'valid', more_valid)
  redis.call('HINCRBY', counts, 'refused', more_refused)
end
redis.call('ZADD', jobs, 'GT', forget_at, job)
return 1
