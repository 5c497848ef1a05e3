-- examine: find one id in all buckets of its shard. Read only.
--
-- KEYS: pool, attempts, outcome, then all buckets
-- ARGV: id
-- Returns {body or nil, 1 if it has attempts, 1 if it has an outcome, {index of each bucket that holds it}}
local id = ARGV[1]
local found_in = {}
for i = 4, #KEYS do
  if redis.call('ZSCORE', KEYS[i], id) then found_in[#found_in + 1] = i - 3 end
end
return {
  redis.call('HGET', KEYS[1], id),
  redis.call('HEXISTS', KEYS[2], id),
  redis.call('HEXISTS', KEYS[3], id),
  found_in,
}
