-- rewake: one topic's wake entry, made right.
--
-- ARGV: topic, now
-- Answers 1: it was wrong and is mended, or 0: it was right and nothing was changed.
--
-- Right is: the bucket's first score; or a time between that and now, for a topic whose turn comes then;
-- or no entry for an empty bucket.
local bucket, wake = KEYS[1], KEYS[2]
local topic, now = ARGV[1], tonumber(ARGV[2])

local first = redis.call('ZRANGE', bucket, 0, 0, 'WITHSCORES')[2]
local entry = redis.call('ZSCORE', wake, topic)
if first and entry then
  local first_at, entry_at = tonumber(first), tonumber(entry)
  if entry_at == first_at or (first_at <= entry_at and entry_at <= now) then return 0 end
elseif not first and not entry then
  return 0
end
rewake(wake, bucket, topic)
return 1
