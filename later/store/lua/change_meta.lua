-- change_meta: write and remove fields of the store's meta, in one step, if other fields are as they should be. The
-- first write removes, so that a move can begin and end in a full store.
--
-- ARGV: how many fields are expected, then each of these and its value ('' if it must be missing), then field, value,
--       ... to write ('' to remove it)
-- Returns 1; 0: one of the expected fields has another value. Then nothing is changed.
local meta = KEYS[1]
local first = 2 + 2 * tonumber(ARGV[1])

for i = 2, first - 1, 2 do
  if (redis.call('HGET', meta, ARGV[i]) or '') ~= ARGV[i + 1] then return 0 end
end
for i = first, #ARGV, 2 do redis.call('HDEL', meta, ARGV[i]) end
for i = first, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then redis.call('HSET', meta, ARGV[i], ARGV[i + 1]) end
end
return 1
