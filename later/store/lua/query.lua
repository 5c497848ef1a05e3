-- query: where tasks of one topic are. Changes nothing.
--
-- ARGV: topic, then for each task: id, the body that was read
-- Answers for each task {score in delay, in unack, in error, in dead ('' where it is not), attempts or '', outcome or ''},
-- or {} where the pool holds another body by now.
local pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3]

local answers = {}
for i = 2, #ARGV, 2 do
  local id, body = ARGV[i], ARGV[i + 1]
  local found = {}
  if redis.call('HGET', pool, id) == body then
    for bucket = 4, 7 do found[#found + 1] = redis.call('ZSCORE', KEYS[bucket], id) or '' end
    found[5] = redis.call('HGET', attempts, id) or ''
    found[6] = redis.call('HGET', outcome, id) or ''
  end
  answers[#answers + 1] = found
end
return answers
