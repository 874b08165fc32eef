-- @include info
-- Count everything at one instant. Reads only.
-- KEYS: shared. ARGV: 1 configuration; 2 most undelivered entries to count in each lane (and at most 4 MB of them,
--   because counting copies them).
-- Returns {counters as a flat list, delayed, tries, dead letters, lanes, served}; a lane is {length, ready, running, held by
--   nobody, undelivered or -1 if more than the bound, entries ever added or -1 if the server does not know}; and the
--   tenants' records and charges as a flat list (order/tenants.lua).
local bound, SERVED, waiting = tonumber(ARGV[2]), KEYS[SHARED - 3], lane_lengths()

local function undelivered(lane, last)
  local counted = 0
  local reached = read_lane(lane, last, '+', bound + 1, 4194304, function() counted = counted + 1 end)
  return reached == '' and counted or -1
end

local function audit_lane(lane)
  if call('EXISTS', lane_key(lane)) == 0 then return {0, waiting[lane], 0, 0, 0, -1} end
  local group, pending, nobody = group_of(lane), 0, 0
  local info = call('XINFO', 'STREAM', lane_key(lane))
  local last = '0-0'
  if group then
    last = named(group, 'last-delivered-id')
    pending = named(group, 'pending')
    for _, row in ipairs(call('XPENDING', lane_key(lane), GROUP)[4] or {}) do
      if row[1] == NOBODY then nobody = tonumber(row[2]) end
    end
  end
  return {call('XLEN', lane_key(lane)), waiting[lane], pending - nobody, nobody, undelivered(lane, last),
    named(info, 'entries-added') or -1}
end

local lanes = {}
for lane = 1, LANE_COUNT do lanes[lane] = audit_lane(lane) end
local served = call_if_typed('HGETALL', SERVED) or {}
for i = 1, #served, 2 do
  if string.sub(served[i], 1, 2) == 't|' and #served[i + 1] == 64 then
    served[i + 1] = string.format(string.rep('%.0f ', 8), struct.unpack('<dddddddd', served[i + 1]))
  end
end
return {call('HGETALL', COUNTS), call('ZCARD', DELAYED), call('HLEN', ATTEMPTS), call('XLEN', DEAD), lanes, served}
