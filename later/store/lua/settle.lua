-- settle: tasks in flight of one topic, unack -> gone, error or dead.
--
-- ARGV: topic, then for each task: id, fence of its claim, fate ('done', 'error' or 'dead'), time, last failure
--       time: 'done': until when the id is remembered ('' for an id that we made); 'error': when its pause ends;
--       'dead': when it died
-- Answers for each task 1: settled, or 0: its lease is not this one any more, and nothing was changed: it ran out,
-- or the task was deleted, or created anew, or settled before.
local pool, attempts, outcome, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local unack, error_, dead = KEYS[5], KEYS[6], KEYS[7]
local wake_unack, wake_error, wake_dead = KEYS[8], KEYS[9], KEYS[10]
local topic = ARGV[1]

redis.call('ZREM', wake_unack, topic)
local answers, to_error, to_dead = {}, false, false
for i = 2, #ARGV, 5 do
  local id, fence, fate, time, failure = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local _, current = begun_and_fence(redis.call('HGET', attempts, id))
  local held = current == fence and redis.call('ZREM', unack, id) == 1
  answers[#answers + 1] = held and 1 or 0
  if held and fate == 'done' then
    redis.call('HDEL', pool, id)
    redis.call('HDEL', attempts, id)
    redis.call('HDEL', outcome, id)
    if time ~= '' then redis.call('ZADD', done, time, id) end
  elseif held then
    local bucket = error_
    if fate == 'dead' then bucket, to_dead = dead, true else to_error = true end
    redis.call('ZADD', bucket, time, id)
    redis.call('HSET', outcome, id, failure)
  end
end
rewake(wake_unack, unack, topic)
if to_error then rewake(wake_error, error_, topic) end
if to_dead then rewake(wake_dead, dead, topic) end
return answers
