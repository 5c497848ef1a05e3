-- count_topics: count the tasks of topics in one shard, in those of their buckets that have any. Read only.
--
-- KEYS: the wake sets of delay, unack, error and dead, then for each topic these four buckets
-- ARGV: now, topic, ...
-- Returns for each topic with tasks, all in one row: its position, its entry in the wake set of delay ('' for none),
--          the size of delay, how many of its scores have passed, the first of these (0 if none), the sizes of unack,
--          error and dead
local now = ARGV[1]
local buckets = 4

local entries = {}
for i = 1, buckets do entries[i] = redis.call('ZMSCORE', KEYS[i], unpack(ARGV, 2)) end
local answers = {}
for topic = 1, #ARGV - 1 do
  local delay, unack, error_, dead = entries[1][topic], entries[2][topic], entries[3][topic], entries[4][topic]
  if delay or unack or error_ or dead then
    local first = buckets * topic + 1
    local passed = delay and redis.call('ZCOUNT', KEYS[first], '-inf', now) or 0
    local row = #answers
    answers[row + 1] = topic - 1
    answers[row + 2] = delay or ''
    answers[row + 3] = delay and redis.call('ZCARD', KEYS[first]) or 0
    answers[row + 4] = passed
    answers[row + 5] = passed > 0 and tonumber(redis.call('ZRANGE', KEYS[first], 0, 0, 'WITHSCORES')[2]) or 0
    answers[row + 6] = unack and redis.call('ZCARD', KEYS[first + 1]) or 0
    answers[row + 7] = error_ and redis.call('ZCARD', KEYS[first + 2]) or 0
    answers[row + 8] = dead and redis.call('ZCARD', KEYS[first + 3]) or 0
  end
end
return answers
