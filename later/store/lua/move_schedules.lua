-- move_schedules: set schedules to their next times after they have fired, each unless it has changed since it was read.
--
-- KEYS: states of schedules, firings
-- ARGV: for each schedule: its id, the time and the state that were read, its next time ('' for none), its new state
-- Returns for each schedule 1: it was moved; 0: another instance has moved it, or it was changed, paused or removed.
local states, firings = KEYS[1], KEYS[2]

local ids = {}
for i = 1, #ARGV, 5 do ids[#ids + 1] = ARGV[i] end
local times, read = redis.call('ZMSCORE', firings, unpack(ids)), redis.call('HMGET', states, unpack(ids))

local answers, moved, new_times, new_states = {}, {}, {}, {}
for n, id in ipairs(ids) do
  local i = 5 * n - 4
  local is_as_read = times[n] and tonumber(times[n]) == tonumber(ARGV[i + 1]) and read[n] == ARGV[i + 2]
  answers[n] = is_as_read and 1 or 0
  if is_as_read then
    moved[#moved + 1] = id
    if ARGV[i + 3] ~= '' then
      new_times[#new_times + 1] = ARGV[i + 3]
      new_times[#new_times + 1] = id
    end
    new_states[#new_states + 1] = id
    new_states[#new_states + 1] = ARGV[i + 4]
  end
end

if #moved > 0 then
  redis.call('ZREM', firings, unpack(moved))
  if #new_times > 0 then redis.call('ZADD', firings, unpack(new_times)) end
  redis.call('HSET', states, unpack(new_states))
end
return answers
