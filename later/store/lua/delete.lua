-- delete: remove tasks of one topic from any bucket, with everything known of them.
--
-- ARGV: topic, '1' to leave dead tasks as they are ('0' to delete them too),
--       then for each task: id, the body that was read, '1' if it has a ttl ('0' if not)
-- Returns for each task 1: deleted, 2: dead and left, or 0: the pool holds another body by now, nothing was changed.
--
-- A delivery in flight cannot be called back, but its settle finds no lease.
local pool, attempts, outcome, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[12]
local dead = KEYS[7]
local topic, leave_dead = ARGV[1], ARGV[2] == '1'

local ids = {}
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local bodies = redis.call('HMGET', pool, unpack(ids))
local died = leave_dead and redis.call('ZMSCORE', dead, unpack(ids)) or {}

local answers, same, ageing, touched = {}, {}, {}, {}
for n, id in ipairs(ids) do
  answers[n] = bodies[n] ~= ARGV[n * 3 + 1] and 0 or died[n] and 2 or 1
  if answers[n] == 1 then
    same[#same + 1] = id
    if ARGV[n * 3 + 2] == '1' then ageing[#ageing + 1] = expiry_member(topic, id) end
  end
end
if #same > 0 then
  for _, hash in ipairs({pool, attempts, outcome}) do redis.call('HDEL', hash, unpack(same)) end
  for bucket = 4, 7 do touched[bucket] = redis.call('ZREM', KEYS[bucket], unpack(same)) > 0 or nil end
end
if #ageing > 0 then redis.call('ZREM', expiry, unpack(ageing)) end
for bucket in pairs(touched) do refresh_wake_in_turn(KEYS[bucket + 4], KEYS[bucket], topic) end
return answers
