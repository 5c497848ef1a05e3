-- end_census: give the census lock back, and write the snapshot. The first write removes.
--
-- ARGV: token of the caller; then, unless the census failed: when it began, the snapshot, its backlog
-- Returns 1; 0, without any change, if the caller has lost the lock.
local lock, snapshot = KEYS[1], KEYS[2]
local token, at, data, backlog = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HGET', lock, 'by') ~= token then return 0 end
redis.call('DEL', lock)
if data then redis.call('HSET', snapshot, 'at', at, 'data', data, 'oldest', backlog) end
return 1
