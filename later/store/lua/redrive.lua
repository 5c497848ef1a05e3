-- redrive: bring dead tasks of one topic back, dead -> delay, and forget their attempts and failures.
--
-- ARGV: topic, then for each task: id, when it died ('' for any time), its new due time,
--       the body that was read ('' for any), its new body ('' to keep it), end of its ttl ('' for none)
-- Returns seven rows with a value for each task: 1: it is back, 0: the pool holds another body by now, or -1: it is not
-- dead, or died again since; only for 1 was it changed. Then its scores in delay, unack, error and dead, its attempts
-- and its outcome, or nil, as they are now.
--
-- The time of death is guard enough if no body is written: a task that has not died again is the one that was read.
local pool, attempts, outcome, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local delay, unack, error_, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local wake_delay, wake_dead = KEYS[9], KEYS[10]
local topic = ARGV[1]

redis.call('ZREM', wake_dead, topic)

local ids, guarded = {}, {}
for i = 2, #ARGV, 6 do
  ids[#ids + 1] = ARGV[i]
  if ARGV[i + 3] ~= '' then guarded[#guarded + 1] = ARGV[i] end
end
local deaths, bodies = redis.call('ZMSCORE', dead, unpack(ids)), {}
if #guarded > 0 then
  for n, body in ipairs(redis.call('HMGET', pool, unpack(guarded))) do bodies[guarded[n]] = body end
end

local answers, back, dues, new_bodies, ends, earliest = {}, {}, {}, {}, {}, nil
for n, id in ipairs(ids) do
  local at = n * 6 - 4
  local died, due, seen, body, ttl_end = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  if seen ~= '' and bodies[id] ~= seen then
    answers[n] = 0
  elseif not deaths[n] or (died ~= '' and tonumber(deaths[n]) ~= tonumber(died)) then
    answers[n] = -1
  else
    answers[n] = 1
    back[#back + 1] = id
    dues[#dues + 1] = due
    dues[#dues + 1] = id
    if body ~= '' then
      new_bodies[#new_bodies + 1] = id
      new_bodies[#new_bodies + 1] = body
    end
    if ttl_end ~= '' then
      ends[#ends + 1] = ttl_end
      ends[#ends + 1] = expiry_member(topic, id)
    end
    if not earliest or tonumber(due) < tonumber(earliest) then earliest = due end
  end
end

if #back > 0 then
  redis.call('ZREM', dead, unpack(back))
  redis.call('HDEL', attempts, unpack(back))
  redis.call('HDEL', outcome, unpack(back))
  if #new_bodies > 0 then redis.call('HSET', pool, unpack(new_bodies)) end
  if #ends > 0 then redis.call('ZADD', expiry, unpack(ends)) end
  redis.call('ZADD', delay, unpack(dues))
  redis.call('ZADD', wake_delay, 'LT', earliest, topic)
end
refresh_wake(wake_dead, dead, topic)

return {answers, read_states(ids, delay, unack, error_, dead, attempts, outcome)}
