-- permit: grant an instance how many deliveries of a topic it may begin, over all instances. The first write removes.
--
-- ARGV: instance, number of this call, now, its deliveries in flight, how many more it wants,
--       how many that were granted it did not begin, end of their lease,
--       rate (a second; 0: no limit), concurrency (0: no limit), how many ms of the rate a late caller may catch up on
-- Returns {granted, when the rate allows more ('' if the rate is not the limit)}
--
-- An instance's deliveries count until their lease ends, so that a crash frees them. Each call states how many there
-- are, so that errors do not add up; a call that is overtaken by a later one is ignored.
-- `begun` is the moment up to which the rate's deliveries were granted. A caller that comes a little late catches up;
-- after a longer gap it does not, because that would be a burst.
local permits = KEYS[1]
local own_field, number, now = 'of:' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local in_flight, wanted, returned = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local lease_end, rate, concurrency, saved_ms = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

-- How long permits are kept: a topic for which no instance asks leaves nothing behind.
local KEPT_MS = 86400000
-- If `begun` is further ahead than this, the store's clock was set back.
local AHEAD_MS = 1000
-- The longest wait for the slowest rate: a year.
local LONGEST_MS = 31536000000

local fields, used, ended, begun = redis.call('HGETALL', permits), 0, {}, nil
for i = 1, #fields, 2 do
  if fields[i] == 'begun' then
    begun = tonumber(fields[i + 1])
  else
    local count, ends, latest = string.match(fields[i + 1], '^(%d+) (%d+) (%d+)$')
    if fields[i] == own_field then
      if tonumber(latest) > number then return {0, ''} end
      lease_end = math.max(lease_end, tonumber(ends))
      ended[#ended + 1] = fields[i]
    elseif tonumber(ends) <= now then
      ended[#ended + 1] = fields[i]
    else
      used = used + tonumber(count)
    end
  end
end
redis.call('HDEL', permits, own_field, unpack(ended))

local granted, again_at = wanted, ''
if concurrency > 0 then granted = math.max(0, math.min(granted, concurrency - used - in_flight)) end
if rate > 0 then
  begun = (begun or 0) - returned * 1000 / rate
  if begun < now - saved_ms - 1000 / rate or begun > now + AHEAD_MS then begun = now - 1000 / rate end
  local allowed = math.max(0, math.floor((now - begun) * rate / 1000 + 0.001))
  if allowed < granted then
    granted = allowed
    again_at = string.format('%.0f', math.min(math.ceil(begun + (allowed + 1) * 1000 / rate), now + LONGEST_MS))
  end
  begun = begun + granted * 1000 / rate
  redis.call('HSET', permits, 'begun', string.format('%.3f', begun))
elseif begun then
  redis.call('HDEL', permits, 'begun')
end
if in_flight + granted > 0 then
  redis.call('HSET', permits, own_field, string.format('%.0f %.0f %.0f', in_flight + granted, lease_end, number))
end
redis.call('PEXPIRE', permits, KEPT_MS)
return {granted, again_at}
