-- claim: due tasks of one topic, delay -> unack.
--
-- ARGV: topic, now, how many at most, the end of their lease, how many bytes of bodies at most (but one task always),
--       until when the rest is held for the sake of its rate ('' for not at all), '1' where permits were taken
-- Answers {the topic's wake time ('' where nothing is left, or where it is held without an end), strays removed,
--          {id, body, due time, attempt, fence, last failure or ''}, ...}
--
-- A task counts as claimed only where ZADD NX answers that it was new in unack: that answer is what makes any
-- number of instances safe. An entry that has no body, or is in unack already, is a stray: it is removed and counted.
-- An answer that cannot be read in time would be a row of lost leases: hence the limit on bytes.
-- Of a topic that is held nothing is claimed; but who was granted permits passes a hold for the sake of a rate, which
-- another instance may have made since, for want of permits. Such a hold is half a millisecond short of a whole one.
-- Where due tasks are left behind, the topic's turn comes again after all those that are waiting: its wake time is now.
-- Each command takes many tasks at once: a call from Lua costs more than what most commands do.
local delay, unack, pool, attempts, outcome, fences = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local wake_delay, wake_unack = KEYS[7], KEYS[8]
local topic, now, limit, lease_end, max_bytes = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local hold, permitted = tonumber(ARGV[6]), ARGV[7] == '1'

local entry = tonumber(redis.call('ZSCORE', wake_delay, topic) or 0)
if entry < 0 and -entry > tonumber(now) then
  local for_its_rate = entry ~= -math.huge and entry ~= math.floor(entry)
  if not (for_its_rate and permitted) then
    return {entry == -math.huge and '' or string.format('%.0f', math.ceil(-entry)), 0}
  end
end

-- Bodies are read so many at a time: not all of what may be far too much.
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

local claimed, strays = {}, 0
if #ids > 0 then
  local entries = redis.call('HMGET', attempts, unpack(ids))
  local failures = redis.call('HMGET', outcome, unpack(ids))
  local in_flight = redis.call('ZMSCORE', unack, unpack(ids))
  redis.call('ZREM', delay, unpack(ids))
  local fence = redis.call('INCRBY', fences, #ids) - #ids
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
      strays = strays + 1
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
  local held = hold and tonumber(next_due) < hold
  if held then next_due = ARGV[6] end
  redis.call('ZADD', wake_delay, held and string.format('%.1f', 0.5 - hold) or next_due, topic)
end
if #claimed == 0 then
  rewake(wake_unack, unack, topic)
else
  redis.call('ZADD', wake_unack, redis.call('ZRANGE', unack, 0, 0, 'WITHSCORES')[2], topic)
end
return {next_due or '', strays, unpack(claimed)}
