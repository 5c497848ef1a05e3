-- split: find where to split a range of one bucket into splits of `size` tasks. Read only.
--
-- ARGV: least score, score that all are below, score and id of an entry that all come after ('' and '' for none; the
--       entry need not exist), tasks in a split, maximum number of split points
-- Returns {number of tasks in the range, then the last entry of each split but the last one: score, id, ...}
--
-- The last split, if the range is used up, has between half and one and a half times as many tasks as the others.
local bucket = KEYS[1]
local since, before, after_score, after_id = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local size, most = tonumber(ARGV[5]), tonumber(ARGV[6])

local first, last = rank_range(bucket, since, before, after_score, after_id)
local answer = {math.max(last - first + 1, 0)}
for n = 1, most do
  local at = first + n * size - 1
  if last - at < size / 2 then break end
  local entry = redis.call('ZRANGE', bucket, at, at, 'WITHSCORES')
  answer[n * 2], answer[n * 2 + 1] = entry[2], entry[1]
end
return answer
