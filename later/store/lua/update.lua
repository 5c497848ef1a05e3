-- update: edit waiting tasks of one topic, delay or error; a task that gets a new due time moves to delay.
--
-- ARGV: topic, then for each task: id, the body that was read, its new body, its new due time ('' to leave it where
--       it is), end of its ttl ('' for none, 'same' to leave it as it is)
-- Returns seven rows with a value for each task: 1: edited, 0: the pool holds another body by now, or -1: it is in
-- flight or dead; only for 1 was it changed. Then its scores in delay, unack, error and dead, its attempts and its
-- outcome, or nil, as they are now.
--
-- The index of ttls may have a later end than a task's body, because a claim under a record lets it live on: hence 'same'.
-- A task that was put back, and gets a new due time, forgets its first one.
-- The first write adds, so a store at maxmemory refuses the whole call: a body may grow.
local pool, attempts, outcome, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local delay, unack, error_, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local wake_delay, wake_error = KEYS[9], KEYS[10]
local topic = ARGV[1]

local ids = {}
for i = 2, #ARGV, 5 do ids[#ids + 1] = ARGV[i] end
local bodies = redis.call('HMGET', pool, unpack(ids))
local in_delay, in_error = redis.call('ZMSCORE', delay, unpack(ids)), redis.call('ZMSCORE', error_, unpack(ids))
local in_flight = redis.call('ZMSCORE', unack, unpack(ids))

local answers, edited, dues, is_moved, from_error, ends, unindexed = {}, {}, {}, {}, {}, {}, {}
local earliest
for n, id in ipairs(ids) do
  local seen, body, due, ttl_end = ARGV[n * 5 - 2], ARGV[n * 5 - 1], ARGV[n * 5], ARGV[n * 5 + 1]
  if bodies[n] ~= seen then
    answers[n] = 0
  elseif in_flight[n] or not (in_delay[n] or in_error[n]) then
    answers[n] = -1
  else
    answers[n] = 1
    edited[#edited + 1] = id
    edited[#edited + 1] = body
    if due ~= '' then
      dues[#dues + 1] = due
      dues[#dues + 1] = id
      is_moved[n] = true
      if in_error[n] then from_error[#from_error + 1] = id end
      if not earliest or tonumber(due) < tonumber(earliest) then earliest = due end
    end
    if ttl_end == '' then
      unindexed[#unindexed + 1] = expiry_member(topic, id)
    elseif ttl_end ~= 'same' then
      ends[#ends + 1] = ttl_end
      ends[#ends + 1] = expiry_member(topic, id)
    end
  end
end

if #edited > 0 then redis.call('HSET', pool, unpack(edited)) end
if #ends > 0 then redis.call('ZADD', expiry, unpack(ends)) end
if #unindexed > 0 then redis.call('ZREM', expiry, unpack(unindexed)) end
if #from_error > 0 then
  redis.call('ZREM', error_, unpack(from_error))
  refresh_wake(wake_error, error_, topic)
end
if #dues > 0 then
  redis.call('ZADD', delay, unpack(dues))
  refresh_wake_keeping_turn(wake_delay, delay, topic)
  redis.call('ZADD', wake_delay, 'LT', earliest, topic)
end

local states = {answers, read_states(ids, delay, unack, error_, dead, attempts, outcome)}
local entries, changed, gone = states[6], {}, {}
for n in pairs(is_moved) do
  if first_due(entries[n]) then
    entries[n] = waiting_entry(begun_and_fence(entries[n]), '0', '') or false
    if entries[n] then
      changed[#changed + 1] = ids[n]
      changed[#changed + 1] = entries[n]
    else
      gone[#gone + 1] = ids[n]
    end
  end
end
if #changed > 0 then redis.call('HSET', attempts, unpack(changed)) end
if #gone > 0 then redis.call('HDEL', attempts, unpack(gone)) end
return states
