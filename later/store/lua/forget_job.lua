-- forget_job: remove a job's counts once they may be forgotten.
--
-- ARGV: job, now
-- Returns 1: removed, or 0: it was counted into since, nothing was changed.
local counts, jobs = KEYS[1], KEYS[2]
local job, now = ARGV[1], ARGV[2]

local forget_at = redis.call('ZSCORE', jobs, job)
if not forget_at or tonumber(forget_at) > tonumber(now) then return 0 end
redis.call('ZREM', jobs, job)
redis.call('DEL', counts)
return 1
