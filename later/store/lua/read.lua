-- read: read the first tasks of a split of one bucket, in its order, with all that is known of them. Read only.
--
-- ARGV: least score, score that all are below, score and id of an entry that all come after, score and id of the last
--       entry ('' and '' for none; neither entry need exist), maximum number of tasks, bytes of bodies to stop after
-- Returns {1 if others follow, otherwise 0, {id, score, ...}} and three rows with a value, or nil, for each task: body,
-- attempts, outcome. At least one task is read, if there is one.
local bucket, pool, attempts, outcome = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local since, before, after_score, after_id, to_score, to_id = unpack(ARGV, 1, 6)
local most, max_bytes = tonumber(ARGV[7]), tonumber(ARGV[8])

-- Bodies are read in slices: all of them together may be far too large. The first slice is one body, because a caller
-- that reads a hundred buckets at once would otherwise get twenty large ones of each.
local READ = 20

local first, end_ = rank_range(bucket, since, before, after_score, after_id)
if to_score ~= '' then end_ = math.min(end_, count_up_to(bucket, to_score, to_id) - 1) end
if end_ < first then return {0, {}, {}, {}, {}} end
local entries = redis.call('ZRANGE', bucket, first, math.min(end_, first + most - 1), 'WITHSCORES')

local ids = {}
for i = 1, #entries, 2 do ids[#ids + 1] = entries[i] end

local bodies, bytes, slice = {}, 0, 1
while #bodies < #ids and bytes <= max_bytes do
  local some = redis.call('HMGET', pool, unpack(ids, #bodies + 1, math.min(#bodies + slice, #ids)))
  slice = math.min(slice * 2, READ)
  for _, body in ipairs(some) do
    bodies[#bodies + 1] = body
    bytes = bytes + (body and #body or 0)
  end
end
for i = #entries, #bodies * 2 + 1, -1 do entries[i] = nil end

return {
  first + #bodies - 1 < end_ and 1 or 0,
  entries,
  bodies,
  redis.call('HMGET', attempts, unpack(ids, 1, #bodies)),
  redis.call('HMGET', outcome, unpack(ids, 1, #bodies)),
}
