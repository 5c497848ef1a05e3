-- Functions that the scripts share. scripts.py puts this file in front of each of them.
--
-- A script that must also run in a store at maxmemory makes a removal its first write: Redis lets a script go on once
-- it has begun to write, and a removal is always allowed.

-- Holds
--
-- A topic's entry in the wake set of delay is a moment, or a hold: the topic is not claimed until a moment, or until it
-- is resumed. A hold is stored below zero, so that no search for due topics finds it and no `create` lowers it; a hold
-- for a rate is half a millisecond off. Only these three functions, and later/store/holds.py, know that.

-- The entry of a hold until a moment in ms (math.huge: until the topic is resumed).
local function hold_entry(until_, for_rate)
  if until_ == math.huge then return '-inf' end
  return string.format(for_rate and '%.1f' or '%.0f', for_rate and 0.5 - until_ or -until_)
end

-- True if an entry (as ZSCORE returns it, or false) is a hold that lasts at `now`; without `now`, if it is any hold: an
-- entry stays when its hold has ended, until the next claim.
local function is_held(entry, now)
  if not entry or tonumber(entry) >= 0 then return false end
  return not now or -tonumber(entry) > tonumber(now)
end

-- The moment in ms at which a hold ends (math.huge: when the topic is resumed), and whether it is for a rate.
local function held_until(entry)
  local until_ = -tonumber(entry)
  return math.ceil(until_), until_ ~= math.huge and until_ ~= math.floor(until_)
end

-- Wake entries

-- Set the topic's wake entry to the first score of its bucket, or remove it if the bucket is empty.
-- Returns that score, or nil.
local function refresh_wake(wake, bucket, topic)
  redis.call('ZREM', wake, topic)
  local first = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')[2]
  if first then redis.call('ZADD', wake, first, topic) end
  return first
end

-- Refresh the topic's wake entry after tasks left the bucket. A held topic stays held; a topic that waits for its next
-- turn keeps it: its entry then lies after its first score.
local function refresh_wake_keeping_turn(wake, bucket, topic)
  local first = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')[2]
  local entry = redis.call('ZSCORE', wake, topic)
  if is_held(entry) then return end
  if not first or not entry or tonumber(first) > tonumber(entry) then refresh_wake(wake, bucket, topic) end
end

-- The fault of the topic's wake entry: 'missing', 'stale' (its bucket is empty), 'wrong', or '' if it is right.
--
-- Right are a hold, the bucket's first score, and a moment between that and now, at which the topic's turn comes.
-- Now is `now` or the store's own time, whichever is later: workers write entries meanwhile.
local function wake_fault(wake, bucket, topic, now)
  local first = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')[2]
  local entry = redis.call('ZSCORE', wake, topic)
  if is_held(entry) then return '' end
  if not first then return entry and 'stale' or '' end
  if not entry then return 'missing' end
  local time = redis.call('TIME')
  local latest = math.max(tonumber(now), time[1] * 1000 + math.floor(time[2] / 1000))
  local first_at, entry_at = tonumber(first), tonumber(entry)
  if entry_at == first_at or (first_at < entry_at and entry_at <= latest) then return '' end
  return 'wrong'
end

-- Tasks

-- The member of the expiry index that stands for a task: no topic contains a zero byte.
local function expiry_member(topic, id)
  return topic .. '\0' .. id
end

-- The states of tasks of one topic, six rows: scores in delay, unack, error and dead, attempts, outcomes.
local function read_states(ids, delay, unack, error_, dead, attempts, outcome)
  return redis.call('ZMSCORE', delay, unpack(ids)), redis.call('ZMSCORE', unack, unpack(ids)),
    redis.call('ZMSCORE', error_, unpack(ids)), redis.call('ZMSCORE', dead, unpack(ids)),
    redis.call('HMGET', attempts, unpack(ids)), redis.call('HMGET', outcome, unpack(ids))
end

-- The number of deliveries begun and the fence of the current lease, from a task's entry in `attempts`. A third word may
-- follow: the id of the record under which a consumer has claimed it.
local function begun_and_fence(entry)
  if not entry then return 0, nil end
  local begun, fence = string.match(entry, '^(%d+) (%d+)')
  return tonumber(begun) or 0, fence
end

-- The entry in `attempts` of a task that waits in delay; nil if it needs none.
--
-- A task that was put back, and is due later than before, keeps its first due time in the place of the fence, which
-- only a task in flight needs. A zero before it tells it from a fence, two say that it was put back for a fault of later
-- or its machine. Earlier versions take it for a fence that no claim has.
local function waiting_entry(begun, fence, first_due)
  if first_due ~= '' then return string.format('%.0f 0%s', begun, first_due) end
  if begun > 0 then return string.format('%.0f %s', begun, fence) end
end

-- The first due time of a task that was put back, with the zero before it, from its entry in `attempts`; nil for any
-- other.
local function first_due(entry)
  return entry and string.match(entry, '^%d+ (0%d+)$')
end

-- Order within a bucket: by score, then by id

-- True if `id` sorts after `other`, byte by byte, as the store orders ids: Lua's own `<` uses the server's locale.
local function sorts_after(id, other)
  for i = 1, math.min(#id, #other) do
    local byte, its = id:byte(i), other:byte(i)
    if byte ~= its then return byte > its end
  end
  return #id > #other
end

-- The number of entries of a bucket up to this one, in the bucket's order. The entry itself need not exist.
--
-- Found by binary search: a million entries may have the same score.
local function count_up_to(bucket, score, id)
  local low, high = redis.call('ZCOUNT', bucket, '-inf', '(' .. score), redis.call('ZCOUNT', bucket, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if sorts_after(redis.call('ZRANGE', bucket, middle, middle)[1], id) then high = middle else low = middle + 1 end
  end
  return low
end

-- The ranks of the first and the last entry of a range of a bucket: scores from `since` on and below `before`; with
-- `score` and `id` ('' for none), only what sorts after that entry. In an empty range, the last is before the first.
local function rank_range(bucket, since, before, score, id)
  local first = redis.call('ZCOUNT', bucket, '-inf', '(' .. since)
  if score ~= '' then first = math.max(first, count_up_to(bucket, score, id)) end
  return first, redis.call('ZCOUNT', bucket, '-inf', '(' .. before) - 1
end
