-- query: tasks, and where they are if they are of one topic. Changes nothing.
--
-- ARGV: ids
-- Answers eight rows with something for each id, or nil: body, until when it is remembered as ended, its scores in
-- delay, unack, error and dead of that topic, its attempts and its outcome. A body says what topic its task is of:
-- where that is another, the scores say nothing.
local pool, done, attempts, outcome = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

return {
  redis.call('HMGET', pool, unpack(ARGV)),
  redis.call('ZMSCORE', done, unpack(ARGV)),
  redis.call('ZMSCORE', KEYS[5], unpack(ARGV)),
  redis.call('ZMSCORE', KEYS[6], unpack(ARGV)),
  redis.call('ZMSCORE', KEYS[7], unpack(ARGV)),
  redis.call('ZMSCORE', KEYS[8], unpack(ARGV)),
  redis.call('HMGET', attempts, unpack(ARGV)),
  redis.call('HMGET', outcome, unpack(ARGV)),
}
