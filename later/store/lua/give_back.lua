-- give_back: return tasks of one topic that were claimed but not delivered, unack -> delay.
--
-- ARGV: topic, then for each task: id, fence of its claim, its due time before the claim
-- Returns for each task 1: returned, or 0: the lease was lost, nothing was changed.
--
-- The attempt is taken back as well: the next claim makes it, and no lease was lost.
local attempts, delay, unack, wake_delay, wake_unack = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic = ARGV[1]

redis.call('ZREM', wake_unack, topic)
local answers, earliest = {}, nil
for i = 2, #ARGV, 3 do
  local id, fence, due = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local begun, current = begun_and_fence(redis.call('HGET', attempts, id))
  local returned = current == fence and redis.call('ZREM', unack, id) == 1
  answers[#answers + 1] = returned and 1 or 0
  if returned then
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
refresh_wake(wake_unack, unack, topic)
return answers
