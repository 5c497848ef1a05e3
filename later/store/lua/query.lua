-- query: where tasks of one topic are. Changes nothing.
--
-- ARGV: topic, then for each task: id, the body that was read
-- Answers for each task {score in delay, in unack, in error, in dead ('' where it is not), attempts or '', outcome or ''},
-- or {} where the pool holds another body by now.
local pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3]

local ids = {}
for i = 2, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local bodies = redis.call('HMGET', pool, unpack(ids))
local begun, failures = redis.call('HMGET', attempts, unpack(ids)), redis.call('HMGET', outcome, unpack(ids))
local scores = {}
for bucket = 4, 7 do scores[bucket - 3] = redis.call('ZMSCORE', KEYS[bucket], unpack(ids)) end

local answers = {}
for n = 1, #ids do
  local found = {}
  if bodies[n] == ARGV[n * 2 + 1] then
    for bucket = 1, 4 do found[bucket] = scores[bucket][n] or '' end
    found[5], found[6] = begun[n] or '', failures[n] or ''
  end
  answers[n] = found
end
return answers
