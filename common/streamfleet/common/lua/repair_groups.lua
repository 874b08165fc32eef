-- @include repair_common
-- Check the lanes' groups. A group that is missing, or was set back, delivers entries again: its lane is to be staged
-- before any other repair. A group that was set beyond its lane's end delivers nothing: it is set to the end.
-- KEYS: shared. ARGV: 1 configuration; 2 '1' to repair, '0' to look only.
-- Returns findings as a flat list of kind and lane.
local seen = call('HMGET', LANES, lane_fields('staged:,'))

local function comes_again(lane, last)
  local start, staged = start_behind(last), given_id(seen[lane])
  return staged and start and call('XRANGE', lane_key(lane), start, staged, 'COUNT', 1)[1]
end

-- Pending entries were delivered.
local function held_beyond(lane, last)
  local newest = call('XPENDING', lane_key(lane), GROUP)[3]
  return newest and encode_id(newest) > encode_id(last)
end

local function look_at_group(lane)
  local last, there = delivered_up_to(lane)
  if there then
    local newest = named(call('XINFO', 'STREAM', lane_key(lane)), 'last-generated-id')
    if encode_id(last) > encode_id(newest) then
      note('group_ahead', LANE_NAMES[lane])
      -- @guard repair: a group beyond the end
      if mend then call('XGROUP', 'SETID', lane_key(lane), GROUP, newest) end
    elseif comes_again(lane, last) or held_beyond(lane, last) then
      note('group_back', LANE_NAMES[lane])
    end
  elseif call('EXISTS', lane_key(lane)) == 1 and comes_again(lane, '0-0') then
    note('group_gone', LANE_NAMES[lane])
  end
end

for lane = 1, LANE_COUNT do look_at_group(lane) end
return found
