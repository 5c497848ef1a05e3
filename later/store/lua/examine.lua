-- examine: where one id stands, over all buckets of its shard. Changes nothing.
--
-- KEYS: pool, attempts, outcome, then all buckets
-- ARGV: id
-- Answers {body or nil, 1 where it has attempts, 1 where it has an outcome, {index of each bucket that it is in}}
local id = ARGV[1]
local places = {}
for i = 4, #KEYS do
  if redis.call('ZSCORE', KEYS[i], id) then places[#places + 1] = i - 3 end
end
return {
  redis.call('HGET', KEYS[1], id),
  redis.call('HEXISTS', KEYS[2], id),
  redis.call('HEXISTS', KEYS[3], id),
  places,
}
