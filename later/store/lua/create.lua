-- create: store new tasks of one topic in pool and delay.
--
-- ARGV: topic, job ('' for none), when the job may be forgotten,
--       then for each task: id, body, due time, '1' if the caller chose the id ('0' if later made it),
--       end of its ttl ('' for none)
-- Returns for each task 1: created, or 0: the id exists (in pool, or ended and remembered), nothing was changed.
--
-- The first write adds, so a store at maxmemory refuses the whole call, as it must: it cannot accept more tasks.
local pool, done, delay, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local expiry, job_counts, jobs = KEYS[5], KEYS[6], KEYS[7]
local topic, job, forget_at = ARGV[1], ARGV[2], ARGV[3]

local own_ids = {}
for i = 4, #ARGV, 5 do
  if ARGV[i + 3] == '1' then own_ids[#own_ids + 1] = ARGV[i] end
end
local known = {}
if #own_ids > 0 then
  local kept, ended = redis.call('HMGET', pool, unpack(own_ids)), redis.call('ZMSCORE', done, unpack(own_ids))
  for n, id in ipairs(own_ids) do known[id] = kept[n] or ended[n] end
end

local answers, bodies, dues, ends = {}, {}, {}, {}
local earliest, created = nil, 0
for i = 4, #ARGV, 5 do
  local id, body, due, ttl_end = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 4]
  if known[id] then
    answers[#answers + 1] = 0
  else
    answers[#answers + 1] = 1
    known[id] = true
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
  redis.call('ZADD', wake, 'LT', earliest, topic)
  if #ends > 0 then redis.call('ZADD', expiry, unpack(ends)) end
  if job ~= '' then redis.call('HINCRBY', job_counts, 'created', created) end
end
if job ~= '' then redis.call('ZADD', jobs, 'GT', forget_at, job) end
return answers
