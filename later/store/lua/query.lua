-- query: tasks, and where they are if they are of one topic. Changes nothing.
--
-- ARGV: ids
-- Answers eight rows with something for each id, or nil: body, until when it is remembered as ended, its scores in
-- delay, unack, error and dead of that topic, its attempts and its outcome. A body says what topic its task is of:
-- where that is another, the scores say nothing.
local pool, done, attempts, outcome = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local delay, unack, error_, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8]

return {
  redis.call('HMGET', pool, unpack(ARGV)),
  redis.call('ZMSCORE', done, unpack(ARGV)),
  where_they_stand(ARGV, delay, unack, error_, dead, attempts, outcome),
}
