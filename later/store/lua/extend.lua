-- extend: let the leases of tasks of one topic last until another moment, be that later or sooner.
--
-- KEYS: attempts, unack, wake set of unack; of tasks that were claimed under a record also expiry, the record
-- ARGV: topic, the new end of the leases; with a record also what it keeps of itself, for how many ms it lasts, and until
--       when those tasks live at least that have a ttl; then for each task: id, fence of its claim
-- Returns for each task 1: extended, or 0: the lease was lost, nothing was changed. Without its record it is lost, too.
--
-- Each command takes many tasks: a call from Lua costs more than most commands do.
local attempts, unack, wake_unack, expiry, record = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic, lease_end = ARGV[1], ARGV[2]
local first = record and 6 or 3

local ids = {}
for i = first, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local entries = redis.call('HMGET', attempts, unpack(ids))
local leases = redis.call('ZMSCORE', unack, unpack(ids))
local is_lost = record and redis.call('EXISTS', record) == 0

local answers, extended, ends = {}, {}, {}
for n, id in ipairs(ids) do
  local _, fence = begun_and_fence(entries[n])
  answers[n] = 0
  if leases[n] and fence == ARGV[first + n * 2 - 1] and not is_lost then
    answers[n] = 1
    extended[#extended + 1] = lease_end
    extended[#extended + 1] = id
    if record then
      ends[#ends + 1] = ARGV[5]
      ends[#ends + 1] = expiry_member(topic, id)
    end
  end
end

redis.call('ZREM', wake_unack, topic)
if #extended > 0 then redis.call('ZADD', unack, 'XX', unpack(extended)) end
refresh_wake(wake_unack, unack, topic)
if record and #extended > 0 then
  redis.call('HSET', record, '', ARGV[3])
  redis.call('PEXPIRE', record, ARGV[4])
  redis.call('ZADD', expiry, 'XX', 'GT', unpack(ends))
end
return answers
