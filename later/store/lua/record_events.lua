-- record_events: add to the counts of operator events, and make events of those whose quiet time is over.
--
-- KEYS: counts, outbox
-- ARGV: now (ms), subjects that are counted at most, events that the outbox holds at most,
--       then for each subject: type, topic, reason, its quiet time (ms), whether it adds up meanwhile (1 or 0), count,
--       since (ms), id of the first task ('': none), more about it (JSON)
-- Returns the events of the outbox: id and event (JSON), in turn.
--
-- counts: <type>\0<topic>\0<reason> -> <last>\0<count>\0<quiet>\0<since>\0<first id>\0<details>: when the last event was
-- made, and what was counted since. It is no JSON, which takes longer to read, because each call reads all of them.
-- outbox: id -> JSON of an event that is to be sent. Whoever has created its task removes it; an event that several
-- instances find here is one task, because its id is the same. The id has the minute, and the ms of it: otherwise an
-- event that is made in the same minute again, because the clock was set back, would pass for the one before.
-- An event takes all of a count, and what comes later is the next one's. A subject beyond the limit is counted as
-- `other`. The first write removes, so the script also runs while the store is full.
local counts_key, outbox = KEYS[1], KEYS[2]
local now, max_subjects, max_events = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local FIELDS, OTHER = 9, 'other'

-- The count that is stored, or nil if later did not write it so.
local function parse_count(text)
  local last, count, quiet, since, first_id, details = string.match(text, '^(%d+)%z(%d+)%z(%d+)%z(%d+)%z(%Z*)%z(%Z*)$')
  if not last then return nil end
  return {
    last = tonumber(last), count = tonumber(count), quiet = tonumber(quiet), since = tonumber(since),
    first_id = first_id, details = details,
  }
end

local function format_count(count)
  local numbers = string.format('%.0f\0%.0f\0%.0f\0%.0f', count.last, count.count, count.quiet, count.since)
  return numbers .. '\0' .. count.first_id .. '\0' .. count.details
end

local function is_quiet(count) return math.abs(now - count.last) < count.quiet end

local counts, subjects, over, changed = {}, 0, {''}, {}
local stored = redis.call('HGETALL', counts_key)
for i = 1, #stored, 2 do
  local count = parse_count(stored[i + 1])
  if not count or (count.count == 0 and not is_quiet(count)) then
    over[#over + 1] = stored[i]
  else
    counts[stored[i]], subjects = count, subjects + 1
  end
end

for i = 4, #ARGV, FIELDS do
  local type, topic, reason, quiet, adds_up, number, since, first_id, details = unpack(ARGV, i, i + FIELDS - 1)
  local subject = type .. '\0' .. topic .. '\0' .. reason
  if not counts[subject] and subjects >= max_subjects then subject = type .. '\0' .. OTHER .. '\0' .. OTHER end
  local count = counts[subject]
  if not count then
    count = {last = 0, count = 0}
    counts[subject], subjects = count, subjects + 1
  end
  count.quiet = tonumber(quiet)
  if adds_up == '1' or not is_quiet(count) then
    if count.count == 0 then count.since, count.first_id = tonumber(since), first_id end
    count.count, count.details = count.count + tonumber(number), details
    changed[subject] = count
  end
end

local waiting, events = redis.call('HLEN', outbox), {}
for subject, count in pairs(counts) do
  if count.count > 0 and not is_quiet(count) and waiting < max_events then
    local type, topic, reason = string.match(subject, '^(%Z*)%z(%Z*)%z(%Z*)$')
    if type then
      local digest = string.sub(redis.sha1hex(topic .. '\0' .. reason), 1, 16)
      local at = string.format('%.0f.%.0f', math.floor(now / 60000), now % 60000)
      events[#events + 1] = 'ev:' .. type .. ':' .. digest .. ':' .. at
      events[#events + 1] = cjson.encode({
        type = type, topic = topic, reason = reason, count = count.count, since = count.since,
        first_id = count.first_id, details = count.details, at = now,
      })
      count.last, count.count, waiting = now, 0, waiting + 1
      changed[subject] = count
    else
      over[#over + 1] = subject
    end
  end
end

local written = {}
for subject, count in pairs(changed) do
  written[#written + 1] = subject
  written[#written + 1] = format_count(count)
end
redis.call('HDEL', counts_key, unpack(over))
if #written > 0 then redis.call('HSET', counts_key, unpack(written)) end
if #events > 0 then redis.call('HSET', outbox, unpack(events)) end
return redis.call('HGETALL', outbox)
