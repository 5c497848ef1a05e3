-- put_tasks: put tasks of one topic where they were in another store, each unless it is there.
--
-- KEYS: pool, attempts, outcome, done, expiry, index of topics, the buckets delay, error and dead, their wake sets
-- ARGV: topic, '1' to hold the topic until it is resumed ('0': as it is), then for each task: id, body, its bucket (1:
--       delay, 2: error, 3: dead), its score there, its entry in attempts, its entry in outcome ('' for none), the end
--       of its ttl ('' for none), the name as which it may be remembered ('' to look for none)
-- Returns for each task 1: put; 0: the id is there; -1: it has ended and is remembered.
--
-- The first write adds, so a store at maxmemory refuses the whole call. A hold comes with the first task, so that no
-- worker finds one before.
local pool, attempts, outcome, done, expiry, topics = unpack(KEYS, 1, 6)
local topic, holds = ARGV[1], ARGV[2] == '1'
local STEP = 8

local ids, names = {}, {}
for i = 3, #ARGV, STEP do
  ids[#ids + 1] = ARGV[i]
  if ARGV[i + 7] ~= '' then names[#names + 1] = ARGV[i + 7] end
end
local kept, ended = redis.call('HMGET', pool, unpack(ids)), {}
if #names > 0 then
  for n, at in ipairs(redis.call('ZMSCORE', done, unpack(names))) do ended[names[n]] = at end
end

local answers, bodies, begun, failures, ends, entries, first = {}, {}, {}, {}, {}, {{}, {}, {}}, {}
local known = {}
for i = 3, #ARGV, STEP do
  local id, body, bucket, score, its_attempts, failure, ttl_end, name = unpack(ARGV, i, i + STEP - 1)
  local n = #answers + 1
  if kept[n] or known[id] then
    answers[n] = 0
  elseif ended[name] then
    answers[n] = -1
  else
    answers[n], known[id], bucket = 1, true, tonumber(bucket)
    bodies[#bodies + 1], bodies[#bodies + 2] = id, body
    if its_attempts ~= '' then begun[#begun + 1], begun[#begun + 2] = id, its_attempts end
    if failure ~= '' then failures[#failures + 1], failures[#failures + 2] = id, failure end
    if ttl_end ~= '' then ends[#ends + 1], ends[#ends + 2] = ttl_end, expiry_member(topic, id) end
    local list = entries[bucket]
    list[#list + 1], list[#list + 2] = score, id
    if not first[bucket] or tonumber(score) < tonumber(first[bucket]) then first[bucket] = score end
  end
end
if #bodies == 0 then return answers end

redis.call('HSET', pool, unpack(bodies))
if #begun > 0 then redis.call('HSET', attempts, unpack(begun)) end
if #failures > 0 then redis.call('HSET', outcome, unpack(failures)) end
if #ends > 0 then redis.call('ZADD', expiry, unpack(ends)) end
if holds then redis.call('ZADD', KEYS[10], hold_entry(math.huge), topic) end
for bucket = 1, 3 do
  if first[bucket] then
    redis.call('ZADD', KEYS[6 + bucket], unpack(entries[bucket]))
    redis.call('ZADD', KEYS[9 + bucket], 'LT', first[bucket], topic)
  end
end
redis.call('ZADD', topics, 0, topic)
return answers
