-- repair: put one id into exactly one bucket, or remove it from all of them.
--
-- KEYS: pool, attempts, outcome, then all buckets of the shard, then their wake sets in the same order
-- ARGV: id, the body that was seen, how many of the first buckets it may be in (0 if it has no body),
--       how many of these are not for dead tasks, index of the bucket to put it in if it is in none, its score there,
--       then the topics of the buckets, in their order
-- Returns 1: repaired, 0: nothing was wrong, or -1: the pool holds another body by now, nothing was changed.
--
-- The id stays in the first bucket of those it may be in, with its score there. If it lives again without an attempt,
-- its last failure goes: only dead tasks have one then, because their ttl ended.
local pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3]
local id, body, allowed, alive = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local fallback, score = tonumber(ARGV[5]), ARGV[6]
local buckets = (#KEYS - 3) / 2

if redis.call('HGET', pool, id) ~= (allowed > 0 and body) then return -1 end

-- A held topic stays held.
local function refresh(i)
  local entry = redis.call('ZSCORE', KEYS[3 + buckets + i], ARGV[6 + i])
  if not is_held(entry) then refresh_wake(KEYS[3 + buckets + i], KEYS[3 + i], ARGV[6 + i]) end
end

local kept
for i = 1, allowed do
  if not kept and redis.call('ZSCORE', KEYS[3 + i], id) then kept = i end
end
local repaired = 0
for i = 1, buckets do
  if i ~= kept and redis.call('ZREM', KEYS[3 + i], id) == 1 then
    refresh(i)
    repaired = 1
  end
end
if allowed == 0 then
  repaired = math.max(repaired, redis.call('HDEL', attempts, id), redis.call('HDEL', outcome, id))
elseif not kept then
  redis.call('ZADD', KEYS[3 + fallback], score, id)
  refresh(fallback)
  repaired = 1
end
if allowed > 0 and (kept or fallback) <= alive and begun_and_fence(redis.call('HGET', attempts, id)) == 0 then
  repaired = math.max(repaired, redis.call('HDEL', outcome, id))
end
return repaired
