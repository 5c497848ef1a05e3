-- query_slice: read tasks as `query` does, but only as many bodies as fit. Read only.
--
-- ARGV: bytes of bodies to stop after, ids
-- Returns the rows that `query` returns. The body of a task that was not read is 0: see `read_bodies`.
local pool, done, attempts, outcome = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local delay, unack, error_, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local ids = {unpack(ARGV, 2)}

return {
  read_bodies(pool, ids, tonumber(ARGV[1])),
  redis.call('ZMSCORE', done, unpack(ids)),
  read_states(ids, delay, unack, error_, dead, attempts, outcome),
}
