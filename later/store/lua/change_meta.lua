-- change_meta: write and remove fields of the store's meta, in one step. The first write removes, so that a move can
-- begin and end in a full store.
--
-- ARGV: field, value, ... ('' to remove it)
-- Returns 1.
local meta = KEYS[1]

for i = 1, #ARGV, 2 do redis.call('HDEL', meta, ARGV[i]) end
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] ~= '' then redis.call('HSET', meta, ARGV[i], ARGV[i + 1]) end
end
return 1
