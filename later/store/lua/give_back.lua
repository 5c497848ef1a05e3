-- give_back: return tasks of one topic that were claimed but not delivered, unack -> delay.
--
-- ARGV: topic, then for each task: id, fence of its claim, when it is due in delay,
--       when it was due before the claim ('' if that is the same; with a zero in front if it is for a fault)
-- Returns for each task 1: returned, or 0: the lease was lost, nothing was changed.
--
-- The attempt is taken back as well: the next claim makes it, and no lease was lost. A task that is due later than
-- before keeps its first due time in its entry in attempts: see `waiting_entry`.
-- Each command takes many tasks: a call from Lua costs more than most commands do.
local attempts, delay, unack, wake_delay, wake_unack = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic = ARGV[1]

redis.call('ZREM', wake_unack, topic)

local ids = {}
for i = 2, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
local entries = redis.call('HMGET', attempts, unpack(ids))
local leases = redis.call('ZMSCORE', unack, unpack(ids))

local answers, is_returned, returned, dues, begun, unbegun, earliest = {}, {}, {}, {}, {}, {}, nil
for n, id in ipairs(ids) do
  local at = n * 4 - 2
  local fence, due, first_due = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local attempt, current = begun_and_fence(entries[n])
  answers[n] = 0
  if current == fence and leases[n] and not is_returned[id] then
    answers[n], is_returned[id] = 1, true
    returned[#returned + 1] = id
    dues[#dues + 1] = due
    dues[#dues + 1] = id
    local entry = waiting_entry(attempt - 1, fence, first_due)
    if entry then
      begun[#begun + 1] = id
      begun[#begun + 1] = entry
    else
      unbegun[#unbegun + 1] = id
    end
    if not earliest or tonumber(due) < tonumber(earliest) then earliest = due end
  end
end

if #returned > 0 then
  redis.call('ZREM', unack, unpack(returned))
  redis.call('ZADD', delay, unpack(dues))
  redis.call('ZADD', wake_delay, 'LT', earliest, topic)
end
if #begun > 0 then redis.call('HSET', attempts, unpack(begun)) end
if #unbegun > 0 then redis.call('HDEL', attempts, unpack(unbegun)) end
refresh_wake(wake_unack, unack, topic)
return answers
