-- expire: let tasks of one topic die whose ttl ended while they waited, delay or error -> dead.
--
-- ARGV: topic, now, then for each task: id, the last failure that was read ('' for none), the failure to store
-- Returns for each task 1: it died, 0: it does not wait, or its ttl has not ended, or 2: its stored failure has
-- changed. Only for 1 was the task moved.
--
-- A task in flight is looked at again after a second. A task that was removed or is dead leaves the index.
local outcome, delay, unack, error_, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wake_delay, wake_error, wake_dead, expiry = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local topic, now = ARGV[1], ARGV[2]

local POSTPONE_MS = 1000

redis.call('ZREM', wake_dead, topic)

local ids, members = {}, {}
for i = 3, #ARGV, 3 do
  ids[#ids + 1] = ARGV[i]
  members[#members + 1] = expiry_member(topic, ARGV[i])
end
local ends = redis.call('ZMSCORE', expiry, unpack(members))
local failures = redis.call('HMGET', outcome, unpack(ids))
local waiting = {redis.call('ZMSCORE', delay, unpack(ids)), redis.call('ZMSCORE', error_, unpack(ids))}
local in_flight = redis.call('ZMSCORE', unack, unpack(ids))

local answers, dying, deaths, new_failures, unindexed, postponed = {}, {}, {}, {}, {}, {}
for n, id in ipairs(ids) do
  local seen, failure = ARGV[1 + n * 3], ARGV[2 + n * 3]
  answers[n] = 0
  if ends[n] and tonumber(ends[n]) <= tonumber(now) then
    if in_flight[n] then
      postponed[#postponed + 1] = now + POSTPONE_MS
      postponed[#postponed + 1] = members[n]
    elseif not waiting[1][n] and not waiting[2][n] then
      unindexed[#unindexed + 1] = members[n]
    elseif (failures[n] or '') ~= seen then
      answers[n] = 2
    else
      answers[n] = 1
      dying[#dying + 1] = id
      unindexed[#unindexed + 1] = members[n]
      deaths[#deaths + 1] = now
      deaths[#deaths + 1] = id
      new_failures[#new_failures + 1] = id
      new_failures[#new_failures + 1] = failure
    end
  end
end

if #unindexed > 0 then redis.call('ZREM', expiry, unpack(unindexed)) end
if #postponed > 0 then redis.call('ZADD', expiry, unpack(postponed)) end
if #dying > 0 then
  local from_delay = redis.call('ZREM', delay, unpack(dying))
  local from_error = redis.call('ZREM', error_, unpack(dying))
  redis.call('ZADD', dead, unpack(deaths))
  redis.call('HSET', outcome, unpack(new_failures))
  if from_delay > 0 then refresh_wake_keeping_turn(wake_delay, delay, topic) end
  if from_error > 0 then refresh_wake(wake_error, error_, topic) end
end
refresh_wake(wake_dead, dead, topic)
return answers
