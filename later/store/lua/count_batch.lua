-- count_batch: count a batch into its job and into its run, once in each, however often it is sent.
--
-- KEYS: jobs, the counts of each counter
-- ARGV: digest of the batch, number of its valid items (created or existing), number of its refused items,
--       digest of those of its items that failed ('' for none), which are sent again as a batch of their own,
--       then for each counter (the job, and its run if there is one): its name, when it may be forgotten
-- Returns 1.
--
-- A count under the same digest is replaced. If a batch of which items had failed is sent again whole, its rest no
-- longer counts, because its items would count twice; nor does the rest of that rest.
-- `create` itself counts what it creates; existing items are the valid ones that were not created.
-- The first write adds, as in `create`, with which this is sent: a store at maxmemory refuses both.
local jobs = KEYS[1]
local digest, valid, refused, rest = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local COVERED = 'covered'

-- a batch's count: '<valid> <refused> <rest>', or 'covered' by a batch that contains it
local function parse(count)
  local valid, refused, rest = string.match(count or '', '^(%d+) (%d+) ?(.*)$')
  return tonumber(valid or 0), tonumber(refused or 0), rest or ''
end

local changes = {}
for n = 1, #KEYS - 1 do
  local counts = KEYS[n + 1]
  local before = redis.call('HGET', counts, digest)
  if before ~= COVERED then
    local valid_before, refused_before, rest_before = parse(before)
    local change = {n = n, covered = {}, valid = valid - valid_before, refused = refused - refused_before}
    local replaced = rest_before ~= '' and rest_before or rest
    while replaced ~= '' do
      if replaced ~= rest then change.covered[#change.covered + 1] = replaced end
      local rest_valid, rest_refused, next_rest = parse(redis.call('HGET', counts, replaced))
      change.valid, change.refused = change.valid - rest_valid, change.refused - rest_refused
      replaced = next_rest
    end
    changes[#changes + 1] = change
  end
end

for _, change in ipairs(changes) do
  local n, counts = change.n, KEYS[change.n + 1]
  redis.call('HSET', counts, digest, valid .. ' ' .. refused .. ' ' .. rest)
  for _, covered in ipairs(change.covered) do redis.call('HSET', counts, covered, COVERED) end
  if rest ~= '' then redis.call('HDEL', counts, rest) end
  redis.call('HINCRBY', counts, 'valid', change.valid)
  redis.call('HINCRBY', counts, 'refused', change.refused)
  redis.call('ZADD', jobs, 'GT', ARGV[2 * n + 4], ARGV[2 * n + 3])
end
return 1
