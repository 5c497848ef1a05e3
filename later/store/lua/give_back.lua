-- give_back: tasks that were claimed and not delivered, of one topic, unack -> delay.
--
-- ARGV: topic, then for each task: id, fence of its claim, the due time that it had
-- Answers for each task 1: given back, or 0: its lease is not this one any more, and nothing was changed.
--
-- The attempt is taken back too: whoever claims the task next makes it, and no lease was lost.
local attempts, delay, unack, wake_delay, wake_unack = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic = ARGV[1]

redis.call('ZREM', wake_unack, topic)
local answers, earliest = {}, nil
for i = 2, #ARGV, 3 do
  local id, fence, due = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local begun, current = begun_and_fence(redis.call('HGET', attempts, id))
  local held = current == fence and redis.call('ZREM', unack, id) == 1
  answers[#answers + 1] = held and 1 or 0
  if held then
    redis.call('ZADD', delay, due, id)
    if begun > 1 then
      redis.call('HSET', attempts, id, string.format('%.0f %s', begun - 1, fence))
    else
      redis.call('HDEL', attempts, id)
    end
    if not earliest or tonumber(due) < tonumber(earliest) then earliest = due end
  end
end
if earliest then redis.call('ZADD', wake_delay, 'LT', earliest, topic) end
rewake(wake_unack, unack, topic)
return answers
