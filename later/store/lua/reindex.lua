-- reindex: is a task that has a ttl and is not dead missing from the index of such tasks? With '1', it is put there.
--
-- ARGV: topic, id, the body that was read, when its ttl ends, '1' to mend
-- Answers 1: it is missing, or was, or 0: nothing is wrong, or the pool holds another body by now.
local pool, delay, unack, error_, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic, id, body, ends, mend = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'

if redis.call('HGET', pool, id) ~= body or redis.call('ZSCORE', expiry, expiring(topic, id)) then return 0 end
local waits = redis.call('ZSCORE', delay, id) or redis.call('ZSCORE', unack, id) or redis.call('ZSCORE', error_, id)
if not waits then return 0 end
if mend then redis.call('ZADD', expiry, ends, expiring(topic, id)) end
return 1
