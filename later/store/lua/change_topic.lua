-- change_topic: let tasks of one topic live on in another one, unack, delay or error -> delay of the other.
--
-- KEYS: pool, attempts, outcome, expiry, index of topics, wake sets of delay, unack and error, then delay, unack and error
--       of the topic, and delay of the other
-- ARGV: topic, the other topic, the moment by which the ttl of a task that waits must have ended ('' if it need not),
--       then for each task: id, fence of its claim ('' if it waits in delay or error), the body that was read ('' if it
--       is claimed), its new body, when it is due, end of its new ttl ('' for none)
-- Returns for each task 1: moved, or 0: its lease was lost, or it is not as it was read; nothing was changed.
--
-- Its attempts and failures are forgotten: they begin anew in the other topic. What must be known of them is in the body.
-- Of tasks whose ttl must have ended, one in flight is looked at again after a second, and one that is dead leaves the
-- index of ttls.
local pool, attempts, outcome, expiry, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wake_delay, wake_unack, wake_error = KEYS[6], KEYS[7], KEYS[8]
local delay, unack, error_, other_delay = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local topic, other, expired_by = ARGV[1], ARGV[2], tonumber(ARGV[3])

local POSTPONE_MS = 1000

-- Read. A bucket that cannot be read must not be found out after the first write.
local ids, members = {}, {}
for i = 4, #ARGV, 6 do
  ids[#ids + 1] = ARGV[i]
  members[#members + 1] = expiry_member(topic, ARGV[i])
end
local entries, leases = redis.call('HMGET', attempts, unpack(ids)), redis.call('ZMSCORE', unack, unpack(ids))
local in_delay, in_error = redis.call('ZMSCORE', delay, unpack(ids)), redis.call('ZMSCORE', error_, unpack(ids))
local ends = redis.call('ZMSCORE', expiry, unpack(members))
redis.call('ZCARD', other_delay)
local unclaimed, bodies = {}, {}
for n, id in ipairs(ids) do
  if ARGV[n * 6 - 1] == '' then unclaimed[#unclaimed + 1] = id end
end
if #unclaimed > 0 then
  for n, body in ipairs(redis.call('HMGET', pool, unpack(unclaimed))) do bodies[unclaimed[n]] = body end
end

local function is_as_read(n, fence, seen)
  if fence ~= '' then
    local _, current = begun_and_fence(entries[n])
    return current == fence and leases[n]
  end
  local is_expired = not expired_by or ends[n] and tonumber(ends[n]) <= expired_by
  return bodies[ids[n]] == seen and not leases[n] and (in_delay[n] or in_error[n]) and is_expired
end

local answers, is_moved, moved, new_bodies, dues, earliest = {}, {}, {}, {}, {}, nil
local unindexed, postponed, new_ends = {}, {}, {}
for n, id in ipairs(ids) do
  local at = n * 6 - 2
  local fence, seen, body, due, ttl_end = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  answers[n] = 0
  if not is_moved[id] and is_as_read(n, fence, seen) then
    answers[n], is_moved[id] = 1, true
    moved[#moved + 1] = id
    unindexed[#unindexed + 1] = members[n]
    new_bodies[#new_bodies + 1] = id
    new_bodies[#new_bodies + 1] = body
    dues[#dues + 1] = due
    dues[#dues + 1] = id
    if ttl_end ~= '' then
      new_ends[#new_ends + 1] = ttl_end
      new_ends[#new_ends + 1] = expiry_member(other, id)
    end
    if not earliest or tonumber(due) < tonumber(earliest) then earliest = due end
  elseif expired_by and ends[n] and tonumber(ends[n]) <= expired_by then
    if leases[n] then
      unindexed[#unindexed + 1] = members[n]
      postponed[#postponed + 1] = expired_by + POSTPONE_MS
      postponed[#postponed + 1] = members[n]
    elseif bodies[id] == seen and not (in_delay[n] or in_error[n]) then
      unindexed[#unindexed + 1] = members[n]
    end
  end
end

if #unindexed > 0 then redis.call('ZREM', expiry, unpack(unindexed)) end
if #postponed > 0 then redis.call('ZADD', expiry, unpack(postponed)) end
if #moved == 0 then return answers end

if redis.call('ZREM', unack, unpack(moved)) > 0 then refresh_wake(wake_unack, unack, topic) end
if redis.call('ZREM', delay, unpack(moved)) > 0 then refresh_wake_keeping_turn(wake_delay, delay, topic) end
if redis.call('ZREM', error_, unpack(moved)) > 0 then refresh_wake(wake_error, error_, topic) end
redis.call('HDEL', attempts, unpack(moved))
redis.call('HDEL', outcome, unpack(moved))
redis.call('HSET', pool, unpack(new_bodies))
if #new_ends > 0 then redis.call('ZADD', expiry, unpack(new_ends)) end
redis.call('ZADD', other_delay, unpack(dues))
-- A topic that any wake set names is in the index.
if redis.call('ZADD', wake_delay, 'LT', earliest, other) == 1 then redis.call('ZADD', index, 0, other) end
return answers
