-- examine: where one id stands, over all buckets of its shard. Changes nothing.
--
-- KEYS: pool, attempts, outcome, then all buckets
-- ARGV: id
-- Answers {body or '', '1' where it has attempts, '1' where it has an outcome, {index of a bucket, score, ...}}
local id = ARGV[1]
local places = {}
for i = 4, #KEYS do
  local score = redis.call('ZSCORE', KEYS[i], id)
  if score then
    places[#places + 1] = i - 3
    places[#places + 1] = score
  end
end
return {
  redis.call('HGET', KEYS[1], id) or '',
  redis.call('HEXISTS', KEYS[2], id),
  redis.call('HEXISTS', KEYS[3], id),
  places,
}
