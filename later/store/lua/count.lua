-- count: count the tasks in each of these buckets of one shard. Read only.
--
-- ARGV: now
-- Returns for each bucket, in one row: its size, how many of its scores have passed, the first of these (0 if none).
local now = ARGV[1]

local answers = {}
for _, bucket in ipairs(KEYS) do
  local passed = redis.call('ZCOUNT', bucket, '-inf', now)
  answers[#answers + 1] = redis.call('ZCARD', bucket)
  answers[#answers + 1] = passed
  answers[#answers + 1] = passed > 0 and tonumber(redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')[2]) or 0
end
return answers
