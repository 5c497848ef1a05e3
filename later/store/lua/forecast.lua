-- forecast: count the tasks of topics of one shard by the times at which they are due. Read only.
--
-- KEYS: the two buckets of each topic, delay and error
-- ARGV: the ends of ranges of scores, ascending, as ZCOUNT takes them
-- Returns for each topic, in one row: how many are before each end. These are running totals: where two are the same, so
-- are all between them, which are not counted then.
local limits, totals = ARGV, {}

local function count_between(bucket, start, low, low_count, high, high_count)
  if high - low < 2 then return end
  if low_count == high_count then
    for i = low + 1, high - 1 do totals[start + i] = totals[start + i] + low_count end
    return
  end
  local middle = math.floor((low + high) / 2)
  local count = redis.call('ZCOUNT', bucket, '-inf', limits[middle])
  totals[start + middle] = totals[start + middle] + count
  count_between(bucket, start, low, low_count, middle, count)
  count_between(bucket, start, middle, count, high, high_count)
end

for position, bucket in ipairs(KEYS) do
  local start = math.floor((position - 1) / 2) * #limits
  if position % 2 == 1 then
    for i = 1, #limits do totals[start + i] = 0 end
  end
  if redis.call('ZCARD', bucket) > 0 then
    local first = redis.call('ZCOUNT', bucket, '-inf', limits[1])
    local last = redis.call('ZCOUNT', bucket, '-inf', limits[#limits])
    totals[start + 1] = totals[start + 1] + first
    totals[start + #limits] = totals[start + #limits] + last
    count_between(bucket, start, 1, first, #limits, last)
  end
end
return totals
