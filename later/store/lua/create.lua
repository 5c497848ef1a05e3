-- create: store new tasks of one topic in pool and delay.
--
-- KEYS: pool, done, delay, wake, expiry, unack, error, index of topics; with counters also jobs, and the counts of each counter
-- ARGV: topic, number of counters (a bulk job and its run, or none),
--       then for each counter: its name, when it may be forgotten,
--       then for each task: id, body, due time, '1' if the caller chose the id ('0' if later made it; of a namespace's
--       UUID its name, as which it is remembered), end of its ttl ('' for none)
-- Returns for each task 1: created. Otherwise the id exists, and nothing was changed: 0: it has ended and is remembered;
-- -1: its task is dead, or of another topic; a larger number: when it is due (in unack: when its lease ends).
--
-- The first write adds, so a store at maxmemory refuses the whole call, as it must: it cannot accept more tasks.
local pool, done, delay, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local expiry, unack, error_, topics, jobs = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local topic, counters = ARGV[1], tonumber(ARGV[2])
local first = 3 + 2 * counters

local own_ids, names = {}, {}
for i = first, #ARGV, 5 do
  if ARGV[i + 3] ~= '0' then
    own_ids[#own_ids + 1] = ARGV[i]
    names[#names + 1] = ARGV[i + 3] == '1' and ARGV[i] or ARGV[i + 3]
  end
end
local known, kept_ids = {}, {}
if #own_ids > 0 then
  local kept, ended = redis.call('HMGET', pool, unpack(own_ids)), redis.call('ZMSCORE', done, unpack(names))
  for n, id in ipairs(own_ids) do
    if ended[n] then known[id] = 0 end
    if kept[n] then
      known[id] = -1
      kept_ids[#kept_ids + 1] = id
    end
  end
end
if #kept_ids > 0 then
  for _, bucket in ipairs({delay, unack, error_}) do
    local scores = redis.call('ZMSCORE', bucket, unpack(kept_ids))
    for n, id in ipairs(kept_ids) do known[id] = scores[n] and tonumber(scores[n]) or known[id] end
  end
end

local answers, bodies, dues, ends = {}, {}, {}, {}
local earliest, created = nil, 0
for i = first, #ARGV, 5 do
  local id, body, due, ttl_end = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 4]
  if known[id] then
    answers[#answers + 1] = known[id]
  else
    answers[#answers + 1] = 1
    known[id] = tonumber(due)
    created = created + 1
    bodies[#bodies + 1] = id
    bodies[#bodies + 1] = body
    dues[#dues + 1] = due
    dues[#dues + 1] = id
    if ttl_end ~= '' then
      ends[#ends + 1] = ttl_end
      ends[#ends + 1] = expiry_member(topic, id)
    end
    if not earliest or tonumber(due) < tonumber(earliest) then earliest = due end
  end
end

if created > 0 then
  redis.call('HSET', pool, unpack(bodies))
  redis.call('ZADD', delay, unpack(dues))
  -- A topic that any wake set names is in the index.
  if redis.call('ZADD', wake, 'LT', earliest, topic) == 1 then redis.call('ZADD', topics, 0, topic) end
  if #ends > 0 then redis.call('ZADD', expiry, unpack(ends)) end
  for n = 1, counters do redis.call('HINCRBY', KEYS[9 + n], 'created', created) end
end
for n = 1, counters do redis.call('ZADD', jobs, 'GT', ARGV[2 * n + 2], ARGV[2 * n + 1]) end
return answers
