-- need: note that every daemon on the store must know a feature. The first write removes.
--
-- ARGV: name of the feature
-- Returns 1: noted, or 0: it was noted before, nothing was changed.
local meta, name = KEYS[1], ARGV[1]

local needs = string.gsub(redis.call('HGET', meta, 'needs') or '', '%s', '')
if string.find(',' .. needs .. ',', ',' .. name .. ',', 1, true) then return 0 end
redis.call('HDEL', meta, 'needs')
redis.call('HSET', meta, 'needs', needs == '' and name or needs .. ',' .. name)
return 1
