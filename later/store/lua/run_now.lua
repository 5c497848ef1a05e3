-- run_now: make waiting tasks of one topic due now, delay or error -> delay. A task that is due keeps its place.
--
-- ARGV: topic, now, then for each task: id, the body that was read
-- Returns seven rows with a value for each task: 1: due now, 0: the pool holds another body by now, or -1: it is in
-- flight or dead; only for 1 was it changed. Then its scores in delay, unack, error and dead, its attempts and its
-- outcome, or nil, as they are now.
local pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3]
local delay, unack, error_, dead = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local wake_delay, wake_error = KEYS[8], KEYS[9]
local topic, now = ARGV[1], ARGV[2]

redis.call('ZREM', wake_error, topic)

local ids = {}
for i = 3, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local bodies = redis.call('HMGET', pool, unpack(ids))
local in_delay, in_error = redis.call('ZMSCORE', delay, unpack(ids)), redis.call('ZMSCORE', error_, unpack(ids))
local in_flight = redis.call('ZMSCORE', unack, unpack(ids))

local answers, dues, from_error = {}, {}, {}
for n, id in ipairs(ids) do
  if bodies[n] ~= ARGV[n * 2 + 2] then
    answers[n] = 0
  elseif in_flight[n] or not (in_delay[n] or in_error[n]) then
    answers[n] = -1
  else
    answers[n] = 1
    dues[#dues + 1] = now
    dues[#dues + 1] = id
    if in_error[n] then from_error[#from_error + 1] = id end
  end
end

if #from_error > 0 then redis.call('ZREM', error_, unpack(from_error)) end
if #dues > 0 then
  redis.call('ZADD', delay, 'LT', unpack(dues))
  redis.call('ZADD', wake_delay, 'LT', now, topic)
end
refresh_wake(wake_error, error_, topic)

return {answers, read_states(ids, delay, unack, error_, dead, attempts, outcome)}
