-- @include keys
-- What XINFO says, which is a flat list of names and values.
local function named(list, name)
  for i = 1, #list, 2 do
    if list[i] == name then return list[i + 1] end
  end
end

local function group_of(lane)
  if call('EXISTS', lane_key(lane)) == 0 then return nil end
  for _, group in ipairs(call('XINFO', 'GROUPS', lane_key(lane))) do
    if named(group, 'name') == GROUP then return group end
  end
end
