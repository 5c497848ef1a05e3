-- settle: end deliveries of some topics, unack -> removed, error or dead.
--
-- KEYS: pool, attempts, outcome, done, expiry, index of topics, wake sets of delay, unack, error and dead, then for each
--       topic: unack, error, dead
-- ARGV: for each topic: topic (none twice), number of its tasks; then for each task, topic by topic: id, fence of its
--       claim, target of the verdict ('remove', 'done', 'error' or 'dead'); unless that is 'remove' also time, last
--       failure, '1' if it has a ttl ('0' if not)
--       'remove': done, without a ttl, and its id is not remembered: as most tasks, each argument of which takes time
--       time: 'done': until when the id is remembered ('' for an id that later made); 'error': end of its retry pause;
--       'dead': when it died
--       last failure: 'done': '', or as what the id is remembered if not as itself: the name of a namespace's UUID
-- Returns for each topic a list: for each task 1: settled, or 0: the lease was lost, nothing was changed: it expired, or
-- the task was deleted, created anew or settled before. Or the error if its buckets cannot be read: nothing was changed.
--
-- Each command takes many tasks, and many topics where it can: a call from Lua costs more than most commands do.
local pool, attempts, outcome, done, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local index, wake_delay, wake_unack, wake_error, wake_dead = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local topic_count = (#KEYS - 10) / 3
local first_task = 2 * topic_count + 1

-- The error that reading a bucket answers, if it does.
local function fault_of(bucket)
  local found = redis.pcall('ZRANGE', bucket, 0, 0)
  return found.err and found
end

-- Read. Buckets that cannot be read must not stop the other topics, nor be found out after the first write. A task that is
-- alone here of its topic needs no look at its lease: it had one if it leaves `unack`.
local ids, starts, answers, topics, last = {}, {}, {}, {}, 0
local at, end_ = first_task, #ARGV
while at <= end_ do
  ids[#ids + 1] = ARGV[at]
  starts[#ids] = at
  at = at + (ARGV[at + 2] == 'remove' and 3 or 6)
end
local entries = redis.call('HMGET', attempts, unpack(ids))
for n = 1, topic_count do
  local unack, error_, dead = unpack(KEYS, 3 * n + 8, 3 * n + 10)
  local first, targets = last + 1, {}
  last = last + tonumber(ARGV[2 * n])
  for i = first, last do targets[ARGV[starts[i] + 2]] = true end
  local is_alone = first == last
  local leases = is_alone and {} or redis.pcall('ZMSCORE', unack, unpack(ids, first, last))
  answers[n] = leases.err and leases or targets.error and fault_of(error_) or targets.dead and fault_of(dead) or {}
  if not answers[n].err then
    topics[#topics + 1] = {
      n = n, name = ARGV[2 * n - 1], unack = unack, error = error_, dead = dead, first = first, last = last,
      is_alone = is_alone, leases = leases, answer = answers[n],
    }
  end
end

-- True if a task has left `unack` that is alone here of its topic. An error is met again by the look at what is left.
local function has_left(topic, id)
  return redis.pcall('ZREM', topic.unack, id) == 1
end

-- Move the tasks out of and into the topics' buckets.
local removed, retried, remembered, failures, unindexed, is_settled = {}, {}, {}, {}, {}, {}
local wakes = {error = {}, dead = {}}
for _, topic in ipairs(topics) do
  local settled, moved, earliest = {}, {}, {}
  for i = topic.first, topic.last do
    local id, fence, target, time, failure, has_ttl = unpack(ARGV, starts[i], starts[i] + 5)
    if target == 'remove' then target, time, has_ttl = 'done', '', '0' end
    local begun, current = begun_and_fence(entries[i])
    local is_claimed = current == fence and not is_settled[id]
    if is_claimed and (topic.leases[i - topic.first + 1] or topic.is_alone and has_left(topic, id)) then
      topic.answer[#topic.answer + 1], is_settled[id] = 1, true
      settled[#settled + 1] = id
      if target ~= 'error' and has_ttl == '1' then unindexed[#unindexed + 1] = expiry_member(topic.name, id) end
      if target == 'done' then
        removed[#removed + 1] = id
        if begun > 1 then retried[#retried + 1] = id end
        if time ~= '' then
          remembered[#remembered + 1] = time
          remembered[#remembered + 1] = failure ~= '' and failure or id
        end
      else
        local bucket = moved[target] or {}
        moved[target] = bucket
        bucket[#bucket + 1] = time
        bucket[#bucket + 1] = id
        failures[#failures + 1] = id
        failures[#failures + 1] = failure
        if not earliest[target] or tonumber(time) < tonumber(earliest[target]) then earliest[target] = time end
      end
    else
      topic.answer[#topic.answer + 1] = 0
    end
  end
  topic.has_settled = #settled > 0
  if topic.has_settled and not topic.is_alone then redis.call('ZREM', topic.unack, unpack(settled)) end
  for target, time in pairs(earliest) do
    redis.call('ZADD', topic[target], unpack(moved[target]))
    wakes[target][#wakes[target] + 1] = time
    wakes[target][#wakes[target] + 1] = topic.name
  end
end

-- Read what the topics still have in flight: mostly nothing if each has one task here, which takes one look at all.
local alone, unleased, leases, idle = {}, {}, {}, {}
for _, topic in ipairs(topics) do
  if topic.is_alone then alone[#alone + 1] = topic.unack end
end
local have_none_left = #alone > 1 and redis.call('EXISTS', unpack(alone)) == 0
for _, topic in ipairs(topics) do
  local left = topic.is_alone and have_none_left and {} or redis.pcall('ZRANGE', topic.unack, 0, 0, 'WITHSCORES')
  if left.err then
    answers[topic.n] = left
  else
    local first_lease = left[2]
    if #removed + #failures == 0 or not first_lease then unleased[#unleased + 1] = topic.name end
    if first_lease then
      leases[#leases + 1] = first_lease
      leases[#leases + 1] = topic.name
    elseif topic.has_settled then
      idle[#idle + 1] = topic
    end
  end
end

-- Write what concerns no single topic. If nothing was settled, the first write is here: a removal.
if #unleased > 0 then redis.call('ZREM', wake_unack, unpack(unleased)) end
if #leases > 0 then redis.call('ZADD', wake_unack, unpack(leases)) end
if #wakes.error > 0 then redis.call('ZADD', wake_error, 'LT', unpack(wakes.error)) end
if #wakes.dead > 0 then redis.call('ZADD', wake_dead, 'LT', unpack(wakes.dead)) end
if #removed > 0 then
  redis.call('HDEL', pool, unpack(removed))
  redis.call('HDEL', attempts, unpack(removed))
end
if #retried > 0 then redis.call('HDEL', outcome, unpack(retried)) end  -- a first attempt follows no failure
if #unindexed > 0 then redis.call('ZREM', expiry, unpack(unindexed)) end
if #remembered > 0 then redis.call('ZADD', done, unpack(remembered)) end
if #failures > 0 then redis.call('HSET', outcome, unpack(failures)) end

-- Forget the topics that no wake set names any more.
local function names_of(some)
  local names = {}
  for n, topic in ipairs(some) do names[n] = topic.name end
  return unpack(names)
end
local function unnamed_in(wake, some)
  local unnamed = {}
  for n, entry in ipairs(#some > 0 and redis.call('ZMSCORE', wake, names_of(some)) or {}) do
    if not entry then unnamed[#unnamed + 1] = some[n] end
  end
  return unnamed
end
local unnamed, buckets = unnamed_in(wake_delay, idle), {}
for _, topic in ipairs(unnamed) do
  buckets[#buckets + 1] = topic.error
  buckets[#buckets + 1] = topic.dead
end
if #buckets > 0 and redis.call('EXISTS', unpack(buckets)) > 0 then
  unnamed = unnamed_in(wake_dead, unnamed_in(wake_error, unnamed))
end
if #unnamed > 0 then redis.call('ZREM', index, names_of(unnamed)) end
return answers
