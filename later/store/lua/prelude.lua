-- What every verb shares. scripts.py puts it in front of each of them.
--
-- Each verb that may run in a store at maxmemory writes first by a removal: Redis lets a script go on
-- once it has begun to write, and a removal is a write that it always allows.

-- The topic's wake entry becomes the first score of its bucket, or goes where the bucket is empty.
-- Answers that score, or nil.
local function rewake(wake, bucket, topic)
  redis.call('ZREM', wake, topic)
  local first = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')[2]
  if first then redis.call('ZADD', wake, first, topic) end
  return first
end

-- The same where tasks left the bucket of a topic that may be held, which is an entry below zero and stays (see `hold`);
-- and one that was served and waits for its next turn keeps its place, for its entry lies after its first score.
local function rewake_in_line(wake, bucket, topic)
  local first = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')[2]
  local entry = redis.call('ZSCORE', wake, topic)
  if entry and tonumber(entry) < 0 then return end
  if not first or not entry or tonumber(first) > tonumber(entry) then rewake(wake, bucket, topic) end
end

-- A task's name in the index of those whose ttl ends: no topic has a zero byte.
local function expiring(topic, id)
  return topic .. '\0' .. id
end

-- Where tasks of one topic stand: its scores in delay, unack, error and dead, its attempts and its outcome, a row each.
local function where_they_stand(ids, delay, unack, error_, dead, attempts, outcome)
  return redis.call('ZMSCORE', delay, unpack(ids)), redis.call('ZMSCORE', unack, unpack(ids)),
    redis.call('ZMSCORE', error_, unpack(ids)), redis.call('ZMSCORE', dead, unpack(ids)),
    redis.call('HMGET', attempts, unpack(ids)), redis.call('HMGET', outcome, unpack(ids))
end

-- What is wrong with the topic's wake entry: 'missing', 'stale' (its bucket is empty), 'wrong', or '' where it is right:
-- the bucket's first score; or a time between that and now, for a topic whose turn comes then; or below zero, for one
-- that is held.
-- Now is `now` or the store's own time, whichever is later: workers write entries while somebody reads them.
local function wake_fault(wake, bucket, topic, now)
  local first = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')[2]
  local entry = redis.call('ZSCORE', wake, topic)
  if entry and tonumber(entry) < 0 then return '' end
  if not first then return entry and 'stale' or '' end
  if not entry then return 'missing' end
  local time = redis.call('TIME')
  local latest = math.max(tonumber(now), time[1] * 1000 + math.floor(time[2] / 1000))
  local first_at, entry_at = tonumber(first), tonumber(entry)
  if entry_at == first_at or (first_at < entry_at and entry_at <= latest) then return '' end
  return 'wrong'
end

-- The task's begun deliveries and the fence of its current lease, from its entry in `attempts`.
local function begun_and_fence(entry)
  if not entry then return 0, nil end
  local begun, fence = string.match(entry, '^(%d+) (%d+)$')
  return tonumber(begun) or 0, fence
end

-- Does `id` come after `other`? Byte by byte, as the store orders ids: Lua's own `<` goes by the server's locale.
local function follows(id, other)
  for i = 1, math.min(#id, #other) do
    local byte, its = id:byte(i), other:byte(i)
    if byte ~= its then return byte > its end
  end
  return #id > #other
end

-- How many entries of a bucket do not come after this one, in the bucket's own order: by score, then by id. The entry
-- need not be there any more.
--
-- Found by halving, whatever stands before it: a million entries may have the same score.
local function up_to(bucket, score, id)
  local low, high = redis.call('ZCOUNT', bucket, '-inf', '(' .. score), redis.call('ZCOUNT', bucket, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if follows(redis.call('ZRANGE', bucket, middle, middle)[1], id) then high = middle else low = middle + 1 end
  end
  return low
end

-- The ranks of the first and the last entry of a stretch of a bucket: scores from `since` on and below `before`; with
-- `score` and `id` ('' for none), what follows these in the bucket's order. The last is before the first where there
-- is none.
local function ranks(bucket, since, before, score, id)
  local first = redis.call('ZCOUNT', bucket, '-inf', '(' .. since)
  if score ~= '' then first = math.max(first, up_to(bucket, score, id)) end
  return first, redis.call('ZCOUNT', bucket, '-inf', '(' .. before) - 1
end
