-- claim: move due tasks of one topic, delay -> unack.
--
-- ARGV: topic, now, maximum number of tasks, end of their lease, maximum bytes of bodies (one task is always claimed),
--       hold the rest until this moment to keep to its rate ('' for no hold), '1' if permits were taken,
--       base of the fences: the tasks claimed get the next numbers
-- Returns {the topic's wake time ('' if nothing is left, or if it is paused), number of orphan entries removed,
--          {id, body, due time, attempt, fence, last failure or ''}, ...}
--
-- A task counts as claimed only if ZADD NX reports it as new in unack: this makes any number of instances safe. An
-- entry that has no body, or that is in unack already, is an orphan: it is removed and counted.
-- An answer that takes too long to read would let all its leases expire; hence the limit on bytes.
-- Nothing is claimed of a held topic, with one exception: a caller that was granted permits passes a hold for a rate,
-- which another instance may have set since because it got no permits.
-- If due tasks are left behind, the topic's wake time becomes now: its next turn comes after the topics that wait.
-- Each command takes many tasks: a call from Lua costs more than most commands do.
local delay, unack, pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wake_delay, wake_unack = KEYS[6], KEYS[7]
local topic, now, limit, lease_end, max_bytes = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local hold, has_permits, fence = tonumber(ARGV[6]), ARGV[7] == '1', tonumber(ARGV[8])

local entry = redis.call('ZSCORE', wake_delay, topic)
if is_held(entry, now) then
  local until_, for_rate = held_until(entry)
  if not (for_rate and has_permits) then
    return {until_ == math.huge and '' or string.format('%.0f', until_), 0}
  end
end

-- Bodies are read in slices: all of them together may be far too large.
local READ = 50

local due = redis.call('ZRANGEBYSCORE', delay, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)

local ids, bodies, bytes = {}, {}, 0
local function read(first)
  local some = {}
  for i = first, math.min(first + READ * 2, #due) - 1, 2 do some[#some + 1] = due[i] end
  for i, body in ipairs(redis.call('HMGET', pool, unpack(some))) do
    bytes = bytes + (body and #body or 0)
    if #ids > 0 and bytes > max_bytes then return end
    ids[#ids + 1] = some[i]
    bodies[#ids] = body
  end
end
for first = 1, #due, READ * 2 do
  if bytes <= max_bytes then read(first) end
end

local claimed, orphans = {}, 0
if #ids > 0 then
  local entries = redis.call('HMGET', attempts, unpack(ids))
  local failures = redis.call('HMGET', outcome, unpack(ids))
  local in_flight = redis.call('ZMSCORE', unack, unpack(ids))
  redis.call('ZREM', delay, unpack(ids))
  local leases, begun, bodiless = {}, {}, {}
  for i, id in ipairs(ids) do
    if bodies[i] and not in_flight[i] then
      local attempt = begun_and_fence(entries[i]) + 1
      fence = fence + 1
      leases[#leases + 1] = lease_end
      leases[#leases + 1] = id
      begun[#begun + 1] = id
      begun[#begun + 1] = string.format('%.0f %.0f', attempt, fence)
      claimed[#claimed + 1] = {id, bodies[i], due[i * 2], attempt, fence, failures[i] or ''}
    else
      orphans = orphans + 1
      if not bodies[i] then bodiless[#bodiless + 1] = id end
    end
  end
  if #bodiless > 0 then
    redis.call('HDEL', attempts, unpack(bodiless))
    redis.call('HDEL', outcome, unpack(bodiless))
  end
  if #claimed > 0 then
    if redis.call('ZADD', unack, 'NX', unpack(leases)) ~= #claimed then
      return redis.error_reply('ERR a task was claimed that is in flight')
    end
    redis.call('HSET', attempts, unpack(begun))
  end
end

local next_due = redis.call('ZRANGE', delay, 0, 0, 'WITHSCORES')[2]
if #ids == 0 or not next_due then redis.call('ZREM', wake_delay, topic) end
if next_due then
  if tonumber(next_due) <= tonumber(now) then next_due = now end
  local holds = hold and tonumber(next_due) < hold
  if holds then next_due = ARGV[6] end
  redis.call('ZADD', wake_delay, holds and hold_entry(hold, true) or next_due, topic)
end
if #claimed == 0 then
  refresh_wake(wake_unack, unack, topic)
else
  redis.call('ZADD', wake_unack, redis.call('ZRANGE', unack, 0, 0, 'WITHSCORES')[2], topic)
end
return {next_due or '', orphans, unpack(claimed)}
