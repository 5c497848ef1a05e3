-- list_jobs: read the next entries of `jobs`, from the latest time on, and return those that a caller may see. Read only.
--
-- ARGV: score and name of an entry that all come after ('' and '' for none; the entry need not exist),
--       how the names begin that the caller may see ('' for all), the most names to return, the most entries to examine
-- Returns {number of entries examined, score and name of the last one ('' and '' at the end of the set),
--          then name, score, ... of the jobs}
--
-- Runs are left out. Only a namespace's job has a slash in its name: two with the one in front of the namespace.
local jobs = KEYS[1]
local score, name, prefix = ARGV[1], ARGV[2], ARGV[3]
local max_names, max_examined = tonumber(ARGV[4]), tonumber(ARGV[5])

local function is_job(entry)
  if string.sub(entry, 1, #prefix) ~= prefix then return false end
  if string.sub(entry, 1, 1) ~= '/' then return not string.find(entry, '/', 1, true) end
  return not string.find(entry, '/', string.find(entry, '/', 2, true) + 1, true)
end

local count
if score == '' then
  count = redis.call('ZCARD', jobs)
else
  count = count_up_to(jobs, score, name)
  local its_score = redis.call('ZSCORE', jobs, name)
  if its_score and tonumber(its_score) == tonumber(score) then count = count - 1 end
end
if count == 0 then return {0, '', ''} end

local first = math.max(count - max_examined, 0)
local entries = redis.call('ZRANGE', jobs, first, count - 1, 'WITHSCORES')
local found, last = {}, 1
for i = #entries - 1, 1, -2 do
  last = i
  if is_job(entries[i]) then
    found[#found + 1] = entries[i]
    found[#found + 1] = entries[i + 1]
    if #found == 2 * max_names then break end
  end
end
local is_end = first == 0 and last == 1
return {(#entries - last + 1) / 2, is_end and '' or entries[last + 1], is_end and '' or entries[last], unpack(found)}
