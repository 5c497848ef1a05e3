-- heartbeat: record that a worker is alive, and forget those that are gone. Each first write removes, so that a full
-- store takes heartbeats: otherwise workers that deliver would seem to be gone.
--
-- ARGV: the worker ('' for none), now, the time of the last heartbeat that is forgotten, and that of the first one
--       that is forgotten because it is ahead of a clock that was set back
-- Returns 1.
local workers = KEYS[1]
local worker, now, forget, ahead = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

redis.call('ZREMRANGEBYSCORE', workers, '-inf', forget)
redis.call('ZREMRANGEBYSCORE', workers, ahead, '+inf')
if worker ~= '' then redis.call('ZADD', workers, now, worker) end
return 1
