-- delete: remove tasks of one topic from any bucket, with everything known of them.
--
-- ARGV: topic, '1' to leave dead tasks as they are ('0' to delete them too),
--       leave tasks in flight whose lease ends after this moment ('' to delete all that are in flight),
--       then for each task: id, the body that was read, '1' if it has a ttl ('0' if not)
-- Returns for each task 1: deleted, 3: deleted while it was in flight, 2: dead and left, 4: in flight and left, or 0: the
-- pool holds another body by now, nothing was changed.
--
-- A delivery in flight cannot be called back, but its settle finds no lease.
local pool, attempts, outcome, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[12]
local unack, dead = KEYS[5], KEYS[7]
local topic, leave_dead, leave_leased_after = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local OTHER_BODY, DELETED, LEFT, IN_FLIGHT, LEASED = 0, 1, 2, 3, 4

local ids = {}
for i = 4, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local bodies = redis.call('HMGET', pool, unpack(ids))
local leases = redis.call('ZMSCORE', unack, unpack(ids))
local deaths = leave_dead and redis.call('ZMSCORE', dead, unpack(ids)) or {}

local answers, deleted, unindexed, changed = {}, {}, {}, {}
for n, id in ipairs(ids) do
  if bodies[n] ~= ARGV[n * 3 + 2] then
    answers[n] = OTHER_BODY
  elseif deaths[n] then
    answers[n] = LEFT
  elseif leave_leased_after and leases[n] and tonumber(leases[n]) > leave_leased_after then
    answers[n] = LEASED
  else
    answers[n] = leases[n] and IN_FLIGHT or DELETED
    deleted[#deleted + 1] = id
    if ARGV[n * 3 + 3] == '1' then unindexed[#unindexed + 1] = expiry_member(topic, id) end
  end
end
if #deleted > 0 then
  for _, hash in ipairs({pool, attempts, outcome}) do redis.call('HDEL', hash, unpack(deleted)) end
  for bucket = 4, 7 do changed[bucket] = redis.call('ZREM', KEYS[bucket], unpack(deleted)) > 0 or nil end
end
if #unindexed > 0 then redis.call('ZREM', expiry, unpack(unindexed)) end
for bucket in pairs(changed) do refresh_wake_keeping_turn(KEYS[bucket + 4], KEYS[bucket], topic) end
return answers
