-- query: read tasks, and where they are if they are of one topic. Read only.
--
-- ARGV: ids
-- Returns eight rows with a value, or nil, for each id: body, until when it is remembered as ended, its scores in
-- delay, unack, error and dead of that topic, attempts, outcome. If the body names another topic, the scores mean
-- nothing.
local pool, done, attempts, outcome = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local delay, unack, error_, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8]

return {
  redis.call('HMGET', pool, unpack(ARGV)),
  redis.call('ZMSCORE', done, unpack(ARGV)),
  read_states(ARGV, delay, unack, error_, dead, attempts, outcome),
}
