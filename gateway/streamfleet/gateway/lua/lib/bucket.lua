-- @include gateway_clock
-- Allowances that refill evenly, in a minute from empty to full: a hash holds the rest of each and its time.
local MINUTE_MS, KEPT_MS = 60000, 3600000

-- An allowance that was not written lately counts as full; so does one with an impossible number, or with a time to come,
-- which somebody wrote by hand: it would stop its owner for ever.
local function is_odd(value, most) return not value or value ~= value or math.abs(value) > most end

local function left_of(bucket, name, capacity, now)
  local found = redis.call('HMGET', bucket, name, name .. '_ms')
  local left, at = tonumber(found[1]), tonumber(found[2])
  if is_odd(left, 1e15) or is_odd(at, now + MINUTE_MS) then return capacity end
  return math.min(capacity, left + math.max(0, now - at) * capacity / MINUTE_MS)
end

-- Milliseconds until this amount will be there.
local function until_ms(left, wanted, capacity)
  return math.max(0, math.ceil((wanted - left) * MINUTE_MS / capacity))
end

local function keep_left(bucket, name, left, capacity, now)
  redis.call('HSET', bucket, name, string.format('%.3f', left), name .. '_ms', string.format('%.0f', now))
  -- A debt, which only tokens may have, is not forgotten before it has filled up. No request is counted meanwhile.
  redis.call('PEXPIRE', bucket, string.format('%.0f', math.max(KEPT_MS, until_ms(left, capacity, capacity))))
end
