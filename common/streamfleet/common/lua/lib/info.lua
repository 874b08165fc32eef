-- @include keys
-- Groups of lanes, as XINFO lists them.
local function group_of(lane)
  if call('EXISTS', lane_key(lane)) == 0 then return nil end
  for _, group in ipairs(call('XINFO', 'GROUPS', lane_key(lane))) do
    if named(group, 'name') == GROUP then return group end
  end
end
