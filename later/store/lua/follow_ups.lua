-- follow_ups: run a script that ends tasks of one topic, and make a task in another topic for each that it has ended.
--
-- scripts.py makes that script the function `end_tasks`, of its KEYS and its ARGV. It returns 1 for each task that it
-- has ended, or a list of one such list.
--
-- KEYS: pool, expiry, index of topics, wake set of delay, delay of the other topic, then those of `end_tasks`
-- ARGV: the other topic, number of the tasks, then for each of them: id, the body that was read ('' if a lease guards
--       it), and of its follow-up: id, body, when it is due, end of its ttl ('' for none); then those of `end_tasks`
-- Returns what `end_tasks` does; or 0 for each task if a body is not as it was read: nothing was changed.
--
-- The first write is that of `end_tasks`, which removes: so a store at maxmemory ends the tasks, and makes the others.
local pool, expiry, index, wake_delay, delay = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic, count = ARGV[1], tonumber(ARGV[2])

-- Read. What cannot be read must not be found out after the first write.
redis.call('ZCARD', delay)
local seen_ids, seen = {}, {}
for at = 3, 2 + 6 * count, 6 do
  if ARGV[at + 1] ~= '' then
    seen_ids[#seen_ids + 1] = ARGV[at]
    seen[#seen + 1] = ARGV[at + 1]
  end
end
if #seen > 0 then
  for n, body in ipairs(redis.call('HMGET', pool, unpack(seen_ids))) do
    if body ~= seen[n] then
      local unchanged = {}
      for i = 1, count do unchanged[i] = 0 end
      return unchanged
    end
  end
end

local keys, arguments = {unpack(KEYS, 6)}, {}
for at = 3 + 6 * count, #ARGV do arguments[#arguments + 1] = ARGV[at] end
local answers = end_tasks(keys, arguments)
local ended = type(answers[1]) == 'table' and answers[1] or answers

local bodies, dues, ends, earliest = {}, {}, {}, nil
for n, code in ipairs(ended) do
  if code == 1 then
    local id, body, due, ttl_end = unpack(ARGV, 6 * n - 1, 6 * n + 2)
    bodies[#bodies + 1] = id
    bodies[#bodies + 1] = body
    dues[#dues + 1] = due
    dues[#dues + 1] = id
    if ttl_end ~= '' then
      ends[#ends + 1] = ttl_end
      ends[#ends + 1] = expiry_member(topic, id)
    end
    if not earliest or tonumber(due) < tonumber(earliest) then earliest = due end
  end
end
if not earliest then return answers end
redis.call('HSET', pool, unpack(bodies))
redis.call('ZADD', delay, unpack(dues))
if #ends > 0 then redis.call('ZADD', expiry, unpack(ends)) end
-- A topic that any wake set names is in the index.
if redis.call('ZADD', wake_delay, 'LT', earliest, topic) == 1 then redis.call('ZADD', index, 0, topic) end
return answers
