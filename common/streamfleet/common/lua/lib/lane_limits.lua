-- Limits of a lane in entries and in bytes; a part of enqueue.lua.
local LARGE = 16384   -- bytes; MEMORY USAGE of a deep lane costs milliseconds, and the limit of entries bounds smaller requests
local call, lanes, limit, limit_bytes, percent = redis.call, tonumber(ARGV[5]), tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[6])
local length, bytes = {}, {}   -- by lane: entries; bytes, once a large request asked for them

-- True if the lane would hold more than its bytes.
local function too_many_bytes(lane, size)
  local full = size >= LARGE and bytes[lane] + size > limit_bytes
  -- @guard enqueue: bytes of one call too
  if bytes[lane] and not full then bytes[lane] = bytes[lane] + size end
  return full
end

local function size_of(lane, words)
  local size = 0
  for i = 2, #words, 2 do size = size + #words[i] end
  if size >= LARGE and not bytes[lane] then
    bytes[lane] = call('MEMORY', 'USAGE', KEYS[lane], 'SAMPLES', 0) or 0   -- false for a lane without a key
  end
  return size
end

-- @policy arrivals
local arrivals = percent > 0 and make_arrivals()   -- what tenants have waiting; false if no request names one
local before = percent > 0 and 2 * lanes + 4 or lanes   -- keys before those of the requests
