-- settle: end deliveries of one topic, unack -> removed, error or dead.
--
-- ARGV: topic, then for each task: id, fence of its claim, target of the verdict ('done', 'error' or 'dead'), time,
--       last failure, '1' if it has a ttl ('0' if not)
--       time: 'done': until when the id is remembered ('' for an id that later made); 'error': end of its retry pause;
--       'dead': when it died
-- Returns for each task 1: settled, or 0: the lease was lost, nothing was changed: it expired, or the task was deleted,
-- created anew or settled before.
--
-- Each command takes many tasks: a call from Lua costs more than most commands do.
local pool, attempts, outcome, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local unack, error_, dead = KEYS[5], KEYS[6], KEYS[7]
local wake_unack, wake_error, wake_dead, expiry = KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local topic = ARGV[1]

redis.call('ZREM', wake_unack, topic)

local ids = {}
for i = 2, #ARGV, 6 do ids[#ids + 1] = ARGV[i] end
local entries = redis.call('HMGET', attempts, unpack(ids))
local leases = redis.call('ZMSCORE', unack, unpack(ids))

local answers, is_settled, settled, removed = {}, {}, {}, {}
local remembered, to_error, to_dead, failures, unindexed = {}, {}, {}, {}, {}
for n, id in ipairs(ids) do
  local at = 2 + (n - 1) * 6
  local fence, target, time, failure = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local _, current = begun_and_fence(entries[n])
  if current == fence and leases[n] and not is_settled[id] then
    answers[n], is_settled[id] = 1, true
    settled[#settled + 1] = id
    if target ~= 'error' and ARGV[at + 5] == '1' then unindexed[#unindexed + 1] = expiry_member(topic, id) end
    if target == 'done' then
      removed[#removed + 1] = id
      if time ~= '' then
        remembered[#remembered + 1] = time
        remembered[#remembered + 1] = id
      end
    else
      local bucket = target == 'dead' and to_dead or to_error
      bucket[#bucket + 1] = time
      bucket[#bucket + 1] = id
      failures[#failures + 1] = id
      failures[#failures + 1] = failure
    end
  else
    answers[n] = 0
  end
end

if #settled > 0 and redis.call('ZREM', unack, unpack(settled)) ~= #settled then
  return redis.error_reply('ERR a task was settled that is not in flight')
end
if #removed > 0 then
  redis.call('HDEL', pool, unpack(removed))
  redis.call('HDEL', attempts, unpack(removed))
  redis.call('HDEL', outcome, unpack(removed))
end
if #unindexed > 0 then redis.call('ZREM', expiry, unpack(unindexed)) end
if #remembered > 0 then redis.call('ZADD', done, unpack(remembered)) end
if #failures > 0 then redis.call('HSET', outcome, unpack(failures)) end
if #to_error > 0 then redis.call('ZADD', error_, unpack(to_error)) end
if #to_dead > 0 then redis.call('ZADD', dead, unpack(to_dead)) end

refresh_wake(wake_unack, unack, topic)
if #to_error > 0 then refresh_wake(wake_error, error_, topic) end
if #to_dead > 0 then refresh_wake(wake_dead, dead, topic) end
return answers
