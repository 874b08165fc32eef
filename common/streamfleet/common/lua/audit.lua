-- @include sums
-- Count everything at one instant. Reads only.
-- KEYS: shared. ARGV: 1 configuration; 2 most undelivered entries to count in each lane.
-- Returns {counters as a flat list, delayed, tries, dead letters, lanes, served}; a lane is what sums_of returns, and the number
--   of entries ever added, -1 if the server does not know; served: that hash as a flat list.
local SERVED, waiting, lanes = KEYS[SHARED - 3], lane_lengths(), {}
for lane = 1, LANE_COUNT do
  lanes[lane] = sums_of(lane, waiting[lane], tonumber(ARGV[2]))
  lanes[lane][6] = call('EXISTS', lane_key(lane)) == 1 and stream_info(lane, 'entries-added') or -1
end
local served = call_if_typed('HGETALL', SERVED) or {}
for i = 1, #served, 2 do
  if string.sub(served[i], 1, 2) == 't|' and #served[i + 1] == 64 then
    served[i + 1] = string.format(string.rep('%.0f ', 8), struct.unpack('<dddddddd', served[i + 1]))
  end
end
return {call('HGETALL', COUNTS), call('ZCARD', DELAYED), call('HLEN', ATTEMPTS), call('XLEN', DEAD), lanes, served}
