-- list: a stretch of one bucket, in its own order: by score, then by id. Changes nothing.
--
-- ARGV: the least score, the score that all are below, how many at most,
--       the score and the id of an entry that all come after ('' and '' for none; it need not be there any more)
-- Answers {id, score, ...}
--
-- A place in the order is found by halving, whatever stands before it: a million entries may have the same score.
local bucket = KEYS[1]
local since, before, count, after_score, after_id = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

-- Byte by byte, as the store orders ids: Lua's own `<` goes by the server's locale.
local function follows(id, other)
  for i = 1, math.min(#id, #other) do
    local byte, its = id:byte(i), other:byte(i)
    if byte ~= its then return byte > its end
  end
  return #id > #other
end

-- How many entries do not come after this one.
local function up_to(score, id)
  local low, high = redis.call('ZCOUNT', bucket, '-inf', '(' .. score), redis.call('ZCOUNT', bucket, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if follows(redis.call('ZRANGE', bucket, middle, middle)[1], id) then high = middle else low = middle + 1 end
  end
  return low
end

local first = redis.call('ZCOUNT', bucket, '-inf', '(' .. since)
if after_score ~= '' then first = math.max(first, up_to(after_score, after_id)) end
local last = math.min(first + count, redis.call('ZCOUNT', bucket, '-inf', '(' .. before)) - 1
if last < first then return {} end
return redis.call('ZRANGE', bucket, first, last, 'WITHSCORES')
