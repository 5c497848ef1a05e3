-- claim: due tasks of one topic, delay -> unack.
--
-- ARGV: topic, now, how many at most, the end of their lease, how many bytes of bodies at most (but one task always)
-- Answers {the topic's wake time ('' where nothing is left), strays removed,
--          {id, body, due time, attempt, fence, last failure or ''}, ...}
--
-- A task counts as claimed only where ZADD NX answers that it was new in unack: that answer is what makes any
-- number of instances safe. An entry that has no body, or is in unack already, is a stray: it is removed and counted.
-- An answer that cannot be read in time would be a row of lost leases: hence the limit on bytes.
-- Where due tasks are left behind, the topic's turn comes again after all those that are waiting: its wake time is now.
local delay, unack, pool, attempts, outcome, fences = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local wake_delay, wake_unack = KEYS[7], KEYS[8]
local topic, now, limit, lease_end, max_bytes = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local due = redis.call('ZRANGEBYSCORE', delay, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
local ids, bytes = {}, 0
for i = 1, #due, 2 do
  bytes = bytes + redis.call('HSTRLEN', pool, due[i])
  if i > 1 and bytes > max_bytes then break end
  ids[#ids + 1] = due[i]
end

local claimed, begun, strays = {}, {}, {}
if #ids > 0 then
  local bodies = redis.call('HMGET', pool, unpack(ids))
  local entries = redis.call('HMGET', attempts, unpack(ids))
  local failures = redis.call('HMGET', outcome, unpack(ids))
  redis.call('ZREM', delay, unpack(ids))
  local fence = redis.call('INCRBY', fences, #ids) - #ids
  for i, id in ipairs(ids) do
    if bodies[i] and redis.call('ZADD', unack, 'NX', lease_end, id) == 1 then
      local attempt = begun_and_fence(entries[i]) + 1
      fence = fence + 1
      begun[#begun + 1] = id
      begun[#begun + 1] = string.format('%.0f %.0f', attempt, fence)
      claimed[#claimed + 1] = {id, bodies[i], due[i * 2], attempt, fence, failures[i] or ''}
    else
      strays[#strays + 1] = id
      if not bodies[i] then
        redis.call('HDEL', attempts, id)
        redis.call('HDEL', outcome, id)
      end
    end
  end
  if #begun > 0 then redis.call('HSET', attempts, unpack(begun)) end
end

local next_due = rewake(wake_delay, delay, topic)
if next_due and tonumber(next_due) <= tonumber(now) then
  redis.call('ZADD', wake_delay, now, topic)
  next_due = now
end
rewake(wake_unack, unack, topic)
return {next_due or '', #strays, unpack(claimed)}
