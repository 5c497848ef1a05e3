-- sweep: remove dead tasks of one topic that were kept long enough.
--
-- ARGV: topic, the latest time of death, then for each task: id, until when it is remembered ('' for not at all), as
--       what it is remembered: its id, or of a namespace's UUID its name
-- Returns for each task 1: removed, or 0: it is not dead, or died again since.
local pool, attempts, outcome, done, dead, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local topic, latest = ARGV[1], tonumber(ARGV[2])

redis.call('ZREM', wake, topic)

local ids = {}
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local deaths = redis.call('ZMSCORE', dead, unpack(ids))

local answers, removed, remembered = {}, {}, {}
for n, id in ipairs(ids) do
  local swept = deaths[n] and tonumber(deaths[n]) <= latest
  answers[n] = swept and 1 or 0
  if swept then
    removed[#removed + 1] = id
    local until_ = ARGV[1 + n * 3]
    if until_ ~= '' then
      remembered[#remembered + 1] = until_
      remembered[#remembered + 1] = ARGV[2 + n * 3]
    end
  end
end
if #removed > 0 then
  redis.call('ZREM', dead, unpack(removed))
  for _, hash in ipairs({pool, attempts, outcome}) do redis.call('HDEL', hash, unpack(removed)) end
end
if #remembered > 0 then redis.call('ZADD', done, unpack(remembered)) end
refresh_wake(wake, dead, topic)
return answers
