-- extend: let the leases of tasks of one topic last until another moment, be that later or sooner.
--
-- ARGV: topic, the new end of the leases, then for each task: id, fence of its claim
-- Returns for each task 1: extended, or 0: the lease was lost, nothing was changed.
--
-- Each command takes many tasks: a call from Lua costs more than most commands do.
local attempts, unack, wake_unack = KEYS[1], KEYS[2], KEYS[3]
local topic, lease_end = ARGV[1], ARGV[2]

redis.call('ZREM', wake_unack, topic)

local ids = {}
for i = 3, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local entries = redis.call('HMGET', attempts, unpack(ids))
local leases = redis.call('ZMSCORE', unack, unpack(ids))

local answers, extended = {}, {}
for n, id in ipairs(ids) do
  local _, fence = begun_and_fence(entries[n])
  answers[n] = 0
  if leases[n] and fence == ARGV[n * 2 + 2] then
    answers[n] = 1
    extended[#extended + 1] = lease_end
    extended[#extended + 1] = id
  end
end

if #extended > 0 then redis.call('ZADD', unack, 'XX', unpack(extended)) end
refresh_wake(wake_unack, unack, topic)
return answers
