-- claim: move due tasks of some topics, delay -> unack.
--
-- KEYS: pool, attempts, outcome, wake sets of delay and unack, then for each topic: delay, unack; with a record also
--       expiry, the record
-- ARGV: now, maximum bytes of bodies of each topic (one task is always claimed), base of the fences: the tasks claimed
--       get the next numbers; then for each topic: topic (none twice), maximum number of tasks, end of their lease,
--       hold the rest until this moment to keep to its rate ('' for no hold), '1' if permits were taken, 'pull' if
--       consumers claim the topic's tasks, or 'record' if they claim them under a record, which is for one topic only;
--       with a record also its id, what it keeps of itself, for how many ms it lasts, and until when those tasks live
--       at least that have a ttl
--       All topics together may have as many bytes as all of them are allowed.
-- Returns for each topic {its wake time ('' if nothing is left, or if it is paused), number of orphan entries removed,
--         {id, body, due time, attempt, fence, last failure or ''}, ...}, or the error if its buckets cannot be read;
--         under a record each task also has the end of its ttl ('' if it has none)
--
-- The due time of a task that was put back is its first one, with a zero before it.
-- A task is claimed only if it is new in unack. An entry that has no body, or that is in unack already, is an orphan: it
-- is removed and counted.
-- An answer that takes too long to read would let all its leases expire, and a script that reads too much would hold
-- up the store's other clients; hence the limits on bytes. So that no large task keeps topics from their turn, each gets
-- its first task before any gets a second, and one that gets none keeps its wake time.
-- Nothing is claimed of a held topic, with one exception: a caller that was granted permits passes a hold for a rate,
-- which another instance may have set since because it got no permits.
-- A pull passes every hold. A topic of which it takes a task is held from then on, so that no worker claims of it; if
-- nothing is due, a pull writes nothing.
-- Under a record a task that has not expired has the end of its ttl moved, if the record lives longer than that.
-- If due tasks are left behind, the topic's wake time becomes now: its next turn comes after the topics that wait.
-- Each command takes many tasks, and many topics where it can: a call from Lua costs more than most commands do.
local pool, attempts, outcome, wake_delay, wake_unack = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now, max_bytes, fence = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

-- Fewer tasks than this are read by rank, together with the entry that follows them.
local FEW = 10
-- Bodies are read in slices, the first a small one: all of them together may be far too large.
local READ_FIRST, READ = 20, 80

local has_record = ARGV[8] == 'record'
local expiry, record = KEYS[8], KEYS[9]
local record_id, record_text, record_ms, live_until = ARGV[9], ARGV[10], ARGV[11], ARGV[12]
local entry_format = has_record and '%.0f %.0f ' .. record_id or '%.0f %.0f'

-- Read the first entries of the topics that are not held. Buckets that cannot be read must not stop the other topics.
local names, answers, topics = {}, {}, {}
for at = 4, has_record and 8 or #ARGV, 5 do names[#names + 1] = ARGV[at] end
local wakes = redis.call('ZMSCORE', wake_delay, unpack(names))
local first_leases = redis.call('ZMSCORE', wake_unack, unpack(names))
for n, entry in ipairs(wakes) do
  local at, delay = 5 * n - 1, KEYS[4 + 2 * n]
  local limit, is_pulled, until_, for_rate = tonumber(ARGV[at + 1]), has_record or ARGV[at + 4] == 'pull', nil, nil
  if not is_pulled and is_held(entry, now) then until_, for_rate = held_until(entry) end
  if until_ and not (for_rate and ARGV[at + 4] == '1') then
    answers[n] = {until_ == math.huge and '' or string.format('%.0f', until_), 0}
  else
    local entries = limit < FEW and redis.pcall('ZRANGE', delay, 0, limit, 'WITHSCORES')
      or redis.pcall('ZRANGEBYSCORE', delay, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
    if entries.err then
      answers[n] = entries
    else
      topics[#topics + 1] = {
        n = n, name = names[n], delay = delay, unack = KEYS[5 + 2 * n], limit = limit, lease_end = ARGV[at + 2],
        hold = tonumber(ARGV[at + 3]), entries = entries, first_lease = first_leases[n], ids = {}, bodies = {}, bytes = 0,
        is_pulled = is_pulled,
      }
    end
  end
end

-- Read the bodies of due tasks, as many as fit.
local slice, owners, slice_size = {}, {}, READ_FIRST
local bytes, bytes_read, max_total = 0, 0, max_bytes * #names
local function read_slice()
  for i, body in ipairs(redis.call('HMGET', pool, unpack(slice))) do
    local topic, size = owners[i], body and #body or 0
    topic.bytes, bytes_read = topic.bytes + size, bytes_read + size
    topic.is_full = topic.is_full or bytes > 0 and bytes + size > max_total or #topic.ids > 0 and topic.bytes > max_bytes
    if not topic.is_full then
      bytes = bytes + size
      topic.ids[#topic.ids + 1] = slice[i]
      topic.bodies[#topic.ids] = body
    end
  end
  slice, owners, slice_size = {}, {}, READ
end
local readable, place, count = {unpack(topics)}, 1, #topics
while count > 0 do
  local left = 0
  for n = 1, count do
    local topic = readable[n]
    local id, due = topic.entries[2 * place - 1], topic.entries[2 * place]
    if id and place <= topic.limit and tonumber(due) <= now and not topic.is_full and bytes_read <= max_total then
      left = left + 1
      readable[left] = topic
      slice[#slice + 1] = id
      owners[#slice] = topic
      if #slice == slice_size then read_slice() end
    end
  end
  place, count = place + 1, left
end
if #slice > 0 then read_slice() end

-- Read what else is known of these tasks, and when the topics' next ones are due.
local ids, begun, failures, ends = {}, {}, {}, {}
for _, topic in ipairs(topics) do
  local taken = #topic.ids
  for _, id in ipairs(topic.ids) do ids[#ids + 1] = id end
  topic.in_flight = topic.first_lease and taken > 0 and redis.pcall('ZMSCORE', topic.unack, unpack(topic.ids)) or {}
  topic.next_due = topic.entries[2 * taken + 2]
  if not topic.next_due and topic.limit >= FEW then
    topic.next_due = redis.call('ZRANGE', topic.delay, taken, taken, 'WITHSCORES')[2]
  end
end
if #ids > 0 then begun = redis.call('HMGET', attempts, unpack(ids)) end
for _, entry in ipairs(begun) do
  if entry then  -- a task without an attempt has no failure
    failures = redis.call('HMGET', outcome, unpack(ids))
    break
  end
end

if has_record and #ids > 0 then
  local members = {}
  for i, id in ipairs(ids) do members[i] = expiry_member(names[1], id) end
  for i, end_ in ipairs(redis.call('ZMSCORE', expiry, unpack(members))) do ends[ids[i]] = end_ end
end

-- Move them. The first write is a removal; a topic that cannot be written to is left as it is.
local all = {}
for _, topic in ipairs(topics) do
  if not topic.is_pulled or #topic.ids > 0 then all[#all + 1] = topic.name end
end
if #all > 0 then redis.call('ZREM', wake_delay, unpack(all)) end

local position, attempts_begun, bodiless, turns, unack_wakes, emptied = 0, {}, {}, {}, {}, {}
for _, topic in ipairs(topics) do
  local leases, first = {}, position
  for i, id in ipairs(topic.ids) do
    if topic.bodies[i] and not topic.in_flight[i] then
      leases[#leases + 1] = topic.lease_end
      leases[#leases + 1] = id
    end
  end
  position = position + #topic.ids
  local added = #leases > 0 and redis.pcall('ZADD', topic.unack, unpack(leases))
  local next_due, answer = topic.next_due, {'', 0}
  if type(added) == 'table' then
    next_due, answer = topic.entries[2], added
  elseif #topic.ids > 0 then
    if next_due then
      redis.call('ZREM', topic.delay, unpack(topic.ids))
    else
      emptied[#emptied + 1] = topic.delay
    end
    for i, id in ipairs(topic.ids) do
      local body, entry = topic.bodies[i], begun[first + i]
      if body and not topic.in_flight[i] then
        local attempt = begun_and_fence(entry) + 1
        fence = fence + 1
        attempts_begun[#attempts_begun + 1] = id
        attempts_begun[#attempts_begun + 1] = string.format(entry_format, attempt, fence)
        local due = first_due(entry) or topic.entries[2 * i]
        answer[#answer + 1] = {id, body, due, attempt, fence, failures[first + i] or ''}
      else
        answer[2] = answer[2] + 1
        if not body then bodiless[#bodiless + 1] = id end
      end
    end
    if #leases > 0 and not (topic.first_lease and tonumber(topic.first_lease) <= tonumber(topic.lease_end)) then
      unack_wakes[#unack_wakes + 1] = topic.lease_end
      unack_wakes[#unack_wakes + 1] = topic.name
    end
  end
  if topic.is_pulled then
    if #topic.ids > 0 then
      turns[#turns + 1] = hold_entry(math.huge)
      turns[#turns + 1] = topic.name
    end
    if not answer.err then answer[1] = next_due or '' end
  elseif next_due then
    local wake = wakes[topic.n]
    local is_due = tonumber(next_due) <= now
    local keeps_turn = is_due and topic.limit > 0 and #topic.ids == 0 and wake and not is_held(wake)
    if is_due then next_due = ARGV[1] end
    local holds = topic.hold and tonumber(next_due) < topic.hold
    turns[#turns + 1] = holds and hold_entry(topic.hold, true) or keeps_turn and wake or next_due
    turns[#turns + 1] = topic.name
    if not answer.err then answer[1] = holds and string.format('%.0f', topic.hold) or next_due end
  end
  answers[topic.n] = answer
end

-- Write what concerns no single topic.
if #emptied > 0 then redis.call('DEL', unpack(emptied)) end
if #turns > 0 then redis.call('ZADD', wake_delay, unpack(turns)) end
if #unack_wakes > 0 then redis.call('ZADD', wake_unack, unpack(unack_wakes)) end
if #attempts_begun > 0 then redis.call('HSET', attempts, unpack(attempts_begun)) end
if #bodiless > 0 then
  redis.call('HDEL', attempts, unpack(bodiless))
  redis.call('HDEL', outcome, unpack(bodiless))
end

-- Record what was claimed.
local recorded = has_record and answers[1]
if recorded and #recorded > 2 then
  local tasks, moved = {}, {}
  for n = 3, #recorded do
    local task = recorded[n]
    tasks[#tasks + 1] = task[1]
    tasks[#tasks + 1] = string.format('%.0f %.0f', task[5], task[3])
    task[7] = ends[task[1]] or ''
    local end_ = tonumber(task[7])
    if end_ and end_ > now and end_ < tonumber(live_until) then
      task[7] = live_until
      moved[#moved + 1] = live_until
      moved[#moved + 1] = expiry_member(names[1], task[1])
    end
  end
  redis.call('HSET', record, '', record_text, unpack(tasks))
  redis.call('PEXPIRE', record, record_ms)
  if #moved > 0 then redis.call('ZADD', expiry, 'XX', 'GT', unpack(moved)) end
end
return answers
