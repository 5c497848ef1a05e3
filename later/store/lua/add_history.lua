-- add_history: add counts to the slots of a moment, set gauges and topics there, and add deliveries to the sample.
--
-- KEYS: the short slot, the long slot, the topics of the long slot, the sample of deliveries
-- ARGV: for how many ms each of the four is kept from now on (0: it is over, and nothing is written there),
--       how many topics a slot may have, how many deliveries the sample may have, 1 if all due tasks were counted,
--       twice the number of counts, field, count, ..., twice the number of gauges, field, value, ...,
--       seven times the number of topics, topic, five counts, how many are due ('' if not known), ...,
--       the deliveries, the oldest first
-- Returns 1.
--
-- Of too many topics, those with the fewest events are dropped. The field '' is no topic: with it the key is there if
-- somebody ran, whatever happened; it is 2 if due tasks were counted meanwhile, otherwise 1. No write removes: a store
-- that is full has no memory left for a picture.
local kept = {tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])}
local topics, deliveries = KEYS[3], KEYS[4]
local most_topics, most_deliveries = tonumber(ARGV[5]), tonumber(ARGV[6])
local are_due_counted = ARGV[7] == '1'
local position = 8

local function next_section()
  local first, last = position + 1, position + tonumber(ARGV[position])
  position = last + 1
  return first, last
end

local function parse_row(row)
  local counts, due = {}, string.match(row, '(%d*)$')
  for count in string.gmatch(row, '(%d+) ') do counts[#counts + 1] = tonumber(count) end
  return counts, due
end

local function sum(counts)
  local total = 0
  for _, count in ipairs(counts) do total = total + count end
  return total
end

local first_count, last_count = next_section()
local first_gauge, last_gauge = next_section()
for i = 1, 2 do
  if kept[i] > 0 then
    for n = first_count, last_count, 2 do redis.call('HINCRBY', KEYS[i], ARGV[n], ARGV[n + 1]) end
    if last_gauge > first_gauge then redis.call('HSET', KEYS[i], unpack(ARGV, first_gauge, last_gauge)) end
    redis.call('PEXPIRE', KEYS[i], kept[i])
  end
end

local first_topic, last_topic = next_section()
if kept[3] > 0 then
  if not are_due_counted then redis.call('HSETNX', topics, '', '1') end
  local written = are_due_counted and {'', '2'} or {}
  for n = first_topic, last_topic, 7 do
    local row = redis.call('HGET', topics, ARGV[n])
    local counts, due = parse_row(row or '0 0 0 0 0 ')
    for i = 1, 5 do counts[i] = string.format('%.0f', (counts[i] or 0) + ARGV[n + i]) end
    if ARGV[n + 6] ~= '' then due = ARGV[n + 6] end
    written[#written + 1] = ARGV[n]
    written[#written + 1] = table.concat(counts, ' ') .. ' ' .. due
  end
  if #written > 0 then redis.call('HSET', topics, unpack(written)) end
  redis.call('PEXPIRE', topics, kept[3])
  local excess = redis.call('HLEN', topics) - 1 - most_topics
  if excess > 0 then
    local flat, rows = redis.call('HGETALL', topics), {}
    for n = 1, #flat, 2 do
      if flat[n] ~= '' then
        local counts, due = parse_row(flat[n + 1])
        rows[#rows + 1] = {flat[n], sum(counts), tonumber(due) or 0}
      end
    end
    table.sort(rows, function(a, b)
      if a[2] ~= b[2] then return a[2] < b[2] end
      if a[3] ~= b[3] then return a[3] < b[3] end
      return a[1] < b[1]
    end)
    local dropped = {}
    for n = 1, excess do dropped[n] = rows[n][1] end
    redis.call('HDEL', topics, unpack(dropped))
  end
end

if position <= #ARGV then
  redis.call('LPUSH', deliveries, unpack(ARGV, position))
  redis.call('LTRIM', deliveries, 0, most_deliveries - 1)
  redis.call('PEXPIRE', deliveries, kept[4])
end
return 1
