-- upsert: create tasks of one topic, or edit those that wait there under their ids; a task that is dead gives its place.
--
-- KEYS: pool, attempts, outcome, done, expiry, index of topics, wake sets of delay, error and dead, then the four buckets
--       of the topic of the tasks that are there, and delay of the topic
-- ARGV: topic, the topic of the tasks that are there (the same one if there are none), then for each task: id, as what it
--       is remembered, the body that was read ('' if there was none), its body, due time and end of ttl if it is created,
--       what happens to a task that waits: 'edit', 'replace' or 'refuse', and for 'edit' its new body, its new due time
--       ('' to leave it where it is) and the end of its ttl ('' for none, 'same' to leave it as it is: see update.lua)
-- Returns two rows with a value for each task: 1: created, 2: edited, 0: the pool holds another body by now, -1: the task
-- is in flight, -2: it waits and was refused, -3: it is in no bucket; only 1 and 2 have changed anything. Then when an
-- edited task is due, otherwise ''.
--
-- An edited task that was put back, and gets a new due time, forgets its first one.
-- The first write adds, so a store at maxmemory refuses the whole call, as it must: it cannot accept more tasks.
local pool, attempts, outcome, done, expiry, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local wake_delay, wake_error, wake_dead = KEYS[7], KEYS[8], KEYS[9]
local delay, unack, error_, dead, new_delay = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local topic, old_topic = ARGV[1], ARGV[2]
local CREATED, EDITED, OTHER_BODY, IN_FLIGHT, REFUSED, NOWHERE = 1, 2, 0, -1, -2, -3

-- Read. A bucket that cannot be read must not be found out after the first write.
local ids = {}
for i = 3, #ARGV, 10 do ids[#ids + 1] = ARGV[i] end
local seen = redis.call('HMGET', pool, unpack(ids))
local in_delay, in_unack = redis.call('ZMSCORE', delay, unpack(ids)), redis.call('ZMSCORE', unack, unpack(ids))
local in_error, in_dead = redis.call('ZMSCORE', error_, unpack(ids)), redis.call('ZMSCORE', dead, unpack(ids))
local entries = redis.call('HMGET', attempts, unpack(ids))
if new_delay ~= delay then redis.call('ZCARD', new_delay) end

local function fate_of(n, body, waiting)
  if (seen[n] or '') ~= body then return OTHER_BODY end
  if body == '' then return CREATED end
  if in_unack[n] then return IN_FLIGHT end
  if in_delay[n] or in_error[n] then
    return waiting == 'edit' and EDITED or waiting == 'replace' and CREATED or REFUSED
  end
  return in_dead[n] and CREATED or NOWHERE
end

local answers, due_times, bodies, ends, unindexed = {}, {}, {}, {}, {}
local names, replaced, new_dues, first_new = {}, {}, {}, nil
local moved_dues, moved, from_error, first_moved = {}, {}, {}, nil

local function set_end(of, id, ttl_end)
  if ttl_end ~= '' then
    ends[#ends + 1] = ttl_end
    ends[#ends + 1] = expiry_member(of, id)
  end
end

for n, id in ipairs(ids) do
  local name, body, new_body, due, ttl_end, waiting, edited_body, edited_due, edited_end =
    unpack(ARGV, 10 * n - 6, 10 * n + 2)
  answers[n], due_times[n] = fate_of(n, body, waiting), ''
  if answers[n] == CREATED then
    names[#names + 1] = name
    bodies[#bodies + 1] = id
    bodies[#bodies + 1] = new_body
    new_dues[#new_dues + 1] = due
    new_dues[#new_dues + 1] = id
    if not first_new or tonumber(due) < tonumber(first_new) then first_new = due end
    if body ~= '' then
      replaced[#replaced + 1] = id
      unindexed[#unindexed + 1] = expiry_member(old_topic, id)
    end
    set_end(topic, id, ttl_end)
  elseif answers[n] == EDITED then
    bodies[#bodies + 1] = id
    bodies[#bodies + 1] = edited_body
    due_times[n] = edited_due ~= '' and edited_due or in_delay[n] or in_error[n]
    if edited_due ~= '' then
      moved_dues[#moved_dues + 1] = edited_due
      moved_dues[#moved_dues + 1] = id
      moved[#moved + 1] = n
      if in_error[n] then from_error[#from_error + 1] = id end
      if not first_moved or tonumber(edited_due) < tonumber(first_moved) then first_moved = edited_due end
    end
    if edited_end == '' then unindexed[#unindexed + 1] = expiry_member(topic, id) end
    if edited_end ~= 'same' then set_end(topic, id, edited_end) end
  end
end
if #bodies == 0 then return {answers, due_times} end

redis.call('HSET', pool, unpack(bodies))
if #unindexed > 0 then redis.call('ZREM', expiry, unpack(unindexed)) end
if #ends > 0 then redis.call('ZADD', expiry, unpack(ends)) end

if #replaced > 0 then
  redis.call('HDEL', attempts, unpack(replaced))
  redis.call('HDEL', outcome, unpack(replaced))
  if redis.call('ZREM', dead, unpack(replaced)) > 0 then refresh_wake_keeping_turn(wake_dead, dead, old_topic) end
  if redis.call('ZREM', error_, unpack(replaced)) > 0 then refresh_wake(wake_error, error_, old_topic) end
  if redis.call('ZREM', delay, unpack(replaced)) > 0 then refresh_wake_keeping_turn(wake_delay, delay, old_topic) end
end
if #names > 0 then
  redis.call('ZREM', done, unpack(names))
  redis.call('ZADD', new_delay, unpack(new_dues))
  -- A topic that any wake set names is in the index.
  if redis.call('ZADD', wake_delay, 'LT', first_new, topic) == 1 then redis.call('ZADD', index, 0, topic) end
end

if #from_error > 0 then
  redis.call('ZREM', error_, unpack(from_error))
  refresh_wake(wake_error, error_, topic)
end
if #moved > 0 then
  redis.call('ZADD', delay, unpack(moved_dues))
  refresh_wake_keeping_turn(wake_delay, delay, topic)
  redis.call('ZADD', wake_delay, 'LT', first_moved, topic)
end
local changed, gone = {}, {}
for _, n in ipairs(moved) do
  if first_due(entries[n]) then
    local entry = waiting_entry(begun_and_fence(entries[n]), '0', '')
    if entry then
      changed[#changed + 1] = ids[n]
      changed[#changed + 1] = entry
    else
      gone[#gone + 1] = ids[n]
    end
  end
end
if #changed > 0 then redis.call('HSET', attempts, unpack(changed)) end
if #gone > 0 then redis.call('HDEL', attempts, unpack(gone)) end
return {answers, due_times}
