-- @include mending
-- @include sums
-- Places of delivered entries, as compare.lua counts them: the groups that deliver, the clock, and what is delayed.
-- A group beyond its lane's end would deliver nothing. One that is missing or was set back delivers again, and is staged again: then
-- returns true. `staged`: id of the last entry that was; `last`, `group`, `first`, `held`: as sums_of returns them.
local function check_group(lane, staged, last, group, first, held)
  if group and not (staged and encode_id(last) <= encode_id(staged)) and call('EXISTS', lane_key(lane)) == 1 then
    local newest = stream_info(lane, 'last-generated-id')
    if encode_id(last) > encode_id(newest) then
      note('group_ahead', LANE_NAMES[lane])
      -- @guard compare: a group beyond the end
      if mend then call('XGROUP', 'SETID', lane_key(lane), GROUP, newest) end
    end
  end
  local back = held and encode_id(held) > encode_id(last) or staged and first and encode_id(first) <= encode_id(staged)
  if back then note(group and 'group_back' or 'group_gone', LANE_NAMES[lane]) end
  return back
end

-- Entries that were staged before the clock was set back rank behind those that come now, unless they are examined.
local function check_clock(lane, staged)
  if not (mend and staged) or id_ms(staged) <= now_ms() then return end
  local from = string.format('%.0f-0', now_ms() + 1)
  local first = call('XRANGE', lane_key(lane), from, staged, 'COUNT', 1)[1]
  if not first or kept_enqueued_ms(lane, first[1]) then return end
  -- @guard compare: what was staged ahead of a clock that was set back is ranked anew
  call('HSET', LANES, 'mending:' .. LANE_NAMES[lane], string.format('%.0f-0 %s', now_ms(), staged))
end

-- The number of delayed requests by lane; nil for too many. Names begin with the lane's digit; what is no entry's name is swept away.
local function delayed_by_lane(delayed)
  local by_lane, names = {0, 0, 0, 0, 0, 0, 0, 0, 0}, delayed <= 5000 and call('ZRANGE', DELAYED, 0, -1)
  for _, name in ipairs(names or {}) do
    local lane = (string.byte(name) or 0) - 48
    if LANE_NAMES[lane] then by_lane[lane] = by_lane[lane] + 1 else note('odd', 'delayed') end
  end
  return names and by_lane
end
