-- repair_expiry: check whether a task with a ttl that is not dead is missing from the expiry index; with '1', add it.
--
-- ARGV: topic, id, the body that was read, end of its ttl, '1' to repair
-- Returns 1: it is (or was) missing, or 0: nothing is wrong, or the pool holds another body by now.
local pool, delay, unack, error_, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic, id, body, ends, repair = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'

if redis.call('HGET', pool, id) ~= body or redis.call('ZSCORE', expiry, expiry_member(topic, id)) then return 0 end
local alive = redis.call('ZSCORE', delay, id) or redis.call('ZSCORE', unack, id) or redis.call('ZSCORE', error_, id)
if not alive then return 0 end
if repair then redis.call('ZADD', expiry, ends, expiry_member(topic, id)) end
return 1
