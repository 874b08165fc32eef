-- @include tables
-- The keys that every script gets first, which are SHARED in number (Keys.shared() in keys.py): of each lane its stream,
-- then its ready set, then its turns, then those below; parts that need others read those themselves. ARGV[1] is the
-- configuration: the prefix of the queue's keys, and the limits that are not the default. QueueLimits.encoded() in limits.py
-- writes it.
local GROUP, NOBODY = 'workers', '~'
local call = redis.call
local cfg = TABLES.limits
for name, value in pairs(cjson.decode(ARGV[1])) do cfg[name] = value end
local LANE_NAMES, LANE_COUNT = cfg.lanes, #cfg.lanes
local SHARED = 3 * LANE_COUNT + 17
local WAKE, LANES, ENTRIES, DEAD, ATTEMPTS, DELAYED, WAITING, WATCH, COUNTS, CANCELS, WORKERS = unpack(KEYS, SHARED - 16, SHARED - 6)
local now_in_ms, attempts_known = cfg.now_ms, nil
local labelled   -- text of LANES: how many wait with a label (order.lua); false for none, nil if not asked

-- Bytes that a read may copy before the sizes of what it reads are known well; and entries that one command may copy
-- before their sizes are known: 128 MiB if all are as large as allowed.
local CHUNK_BYTES = 65536
local MOST_UNSEEN = math.max(1, math.floor(134217728 / cfg.max_entry_bytes))

local function lane_key(lane) return KEYS[lane] end
local function ready_key(lane) return KEYS[LANE_COUNT + lane] end

local function result_key(request_id) return cfg.prefix .. 'result:' .. request_id end
local function entry_name(lane, id) return LANE_NAMES[lane] .. ':' .. id end
local DIGITS = {'1', '2', '3', '4', '5', '6', '7', '8', '9'}   -- of lanes: joining a number to text takes longer
local function entry_field(lane, id) return DIGITS[lane] .. '|' .. id end

-- Fields of a hash: of each prefix one for each lane. `prefixes`: each ends with a comma. `names`: of lanes, if not LANE_NAMES.
local function lane_fields(prefixes, names)
  local fields = {nil, nil, nil, nil}
  for prefix in string.gmatch(prefixes, '([^,]*),') do
    for lane = 1, LANE_COUNT do fields[#fields + 1] = prefix .. (names or LANE_NAMES)[lane] end
  end
  return unpack(fields)
end

-- Number of records of attempts; asked once in a call, unless it makes one.
local function some_attempts()
  attempts_known = attempts_known or call('HLEN', ATTEMPTS)
  return attempts_known > 0
end

local function now_ms()
  if not now_in_ms then
    local time = call('TIME')
    now_in_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now_in_ms
end

-- Like call, for a key whose name others choose and whose type may be wrong: nil for a wrong type.
local function call_if_typed(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then return call(...) end   -- any other error is raised unchanged
end

-- A key of another type, or a hash without a status, is not an answer: it was written by hand.
local function answered(request_id)
  return call_if_typed('HEXISTS', result_key(request_id), 'status') == 1
end

-- XADD to a stream of notifications. A client that can write to it can use up its ids or change its type; then nothing
-- is sent, because an error halfway would break every worker that calls the script.
-- Returns the new stream id, or nothing.
local function tell(...)
  local reply = redis.pcall('XADD', ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not (string.find(reply.err, 'WRONGTYPE', 1, true) or string.find(reply.err, 'last possible ID', 1, true)) then
    call('XADD', ...)   -- any other error is raised unchanged
  end
end

-- A server at its memory limit refuses a script's growing commands only until the script has written. Every
-- script that takes work out starts with this harmless write, so that a full server can still be drained.
local function open_for_writes() call('XACK', KEYS[1], GROUP, '0-0') end

-- Returns how many wait in each lane, those with a label included.
local function lane_lengths()
  local waiting, lane = {nil, nil, nil, nil}, 0
  for each = 1, LANE_COUNT do waiting[each] = call('ZCARD', ready_key(each)) end
  labelled = call('HGET', LANES, 'labelled')
  for t, b, h, held in string.gmatch(labelled or '', '(%d+) (%d+) (%d+) (%d+);') do
    lane = lane + 1
    waiting[lane] = (waiting[lane] or 0) + t + b + h + held
  end
  return waiting
end

-- Raises WRONGTYPE before any write if a key was overwritten: an error halfway would leave writes that are never counted.
-- Returns how many wait in each lane. `some`: true if the caller itself looks at WATCH, WAKE and DELAYED.
local function require_types(some)
  local waiting = lane_lengths()
  -- @guard types: tries of another type is noticed before a write
  some_attempts()
  -- @guard types: counts of another type is noticed before a write
  call('HLEN', COUNTS)
  -- @guard types: dead of another type is noticed before a write
  call('XLEN', DEAD)
  -- @guard types: waiting of another type is noticed before a write
  call('ZCARD', WAITING)
  if some then return waiting end
  -- @guard types: delayed of another type is noticed before a write
  call('ZCARD', DELAYED)
  -- @guard types: watch of another type is noticed before a write
  call('ZCARD', WATCH)
  -- @guard types: wake of another type is noticed before a write
  call('XLEN', WAKE)
  return waiting
end

-- @inside
