-- @include info
-- The number of a lane's entries in each place. `waits`: how many wait; `most`: undelivered entries to count, and at most 4 MB of
-- them, because counting copies them. Returns {length, waiting, running, held by nobody, undelivered or -1 if there are more};
-- the last id that the group delivered; the group or nil, as XINFO lists it; the first undelivered id, and the last pending one.
local function sums_of(lane, waits, most)
  local there, group, nobody, undelivered, first = call('EXISTS', lane_key(lane)) == 1, group_of(lane), 0, 0, nil
  local last = group and named(group, 'last-delivered-id') or '0-0'
  local reached = read_lane(lane, last, '+', most + 1, 4194304, function(id) undelivered, first = undelivered + 1, first or id end)
  local pending = group and call('XPENDING', lane_key(lane), GROUP) or {}
  for _, row in ipairs(pending[4] or {}) do
    if row[1] == NOBODY then nobody = tonumber(row[2]) end
  end
  local running = group and named(group, 'pending') - nobody or 0
  return {there and call('XLEN', lane_key(lane)) or 0, waits, running, nobody, reached == '' and undelivered or -1}, last, group, first, pending[3]
end

local function stream_info(lane, name) return named(call('XINFO', 'STREAM', lane_key(lane)), name) end
