-- mend: one id into exactly one bucket, or out of all of them.
--
-- KEYS: pool, attempts, outcome, then all buckets of the shard, then their wake sets in the same order
-- ARGV: id, the body that was seen, how many of the buckets it may be in (0 where it has no body: none),
--       the index of the one to be put in where it is in none of these, the score there,
--       then the topics of the buckets, in their order
-- Answers 1: mended, 0: nothing was wrong, or -1: the pool holds another body by now; then nothing was changed.
--
-- It stays in the first of the buckets that it may be in, with its score there.
local pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3]
local id, body, homes, refuge, score = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local buckets = (#KEYS - 3) / 2

if redis.call('HGET', pool, id) ~= (homes > 0 and body) then return -1 end

-- A topic that is held stays so.
local function wake_again(i)
  local entry = redis.call('ZSCORE', KEYS[3 + buckets + i], ARGV[5 + i])
  if not entry or tonumber(entry) >= 0 then rewake(KEYS[3 + buckets + i], KEYS[3 + i], ARGV[5 + i]) end
end

local home
for i = 1, homes do
  if not home and redis.call('ZSCORE', KEYS[3 + i], id) then home = i end
end
local mended = 0
for i = 1, buckets do
  if i ~= home and redis.call('ZREM', KEYS[3 + i], id) == 1 then
    wake_again(i)
    mended = 1
  end
end
if homes == 0 then
  mended = math.max(mended, redis.call('HDEL', attempts, id), redis.call('HDEL', outcome, id))
elseif not home then
  redis.call('ZADD', KEYS[3 + refuge], score, id)
  wake_again(refuge)
  mended = 1
end
return mended
