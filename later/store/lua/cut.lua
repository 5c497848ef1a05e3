-- cut: where a stretch of one bucket is to be cut into pieces of so many tasks. Changes nothing.
--
-- ARGV: the least score, the score that all are below, the score and the id of an entry that all come after ('' and ''
--       for none; it need not be there any more), tasks in a piece, how many cuts at most
-- Answers {how many tasks stand there, then the last entry of each piece but the last one: score, id, ...}
--
-- The last piece, where nothing is left to cut, is between half as large as the others and half as large again.
local bucket = KEYS[1]
local since, before, after_score, after_id = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local size, most = tonumber(ARGV[5]), tonumber(ARGV[6])

local first, last = ranks(bucket, since, before, after_score, after_id)
local answer = {math.max(last - first + 1, 0)}
for cut = 1, most do
  local at = first + cut * size - 1
  if last - at < size / 2 then break end
  local entry = redis.call('ZRANGE', bucket, at, at, 'WITHSCORES')
  answer[cut * 2], answer[cut * 2 + 1] = entry[2], entry[1]
end
return answer
