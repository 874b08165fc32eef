-- @include keys
-- Lanes: their groups, as XINFO lists them, and their entries, read in chunks.

-- Raises NOGROUP before any write; the caller creates the groups and calls again. Halfway through, it would leave
-- writes behind whose counts were never added.
local function require_groups()
  -- @guard groups: missing ones are noticed before a write
  for lane = 1, LANE_COUNT do call('XPENDING', lane_key(lane), GROUP, '-', '+', 1) end
  require_types()
end

-- A value from an XINFO reply, which is a flat list of names and values.
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

-- Start of a range behind an id, '' for all; nil for the largest id, which nothing can follow and which Redis refuses here.
local function start_behind(id)
  -- @guard info: not behind the last stream id
  if id == '18446744073709551615-18446744073709551615' then return nil end
  return id == '' and '-' or '(' .. id
end

-- Calls `look` with the id and the fields of each entry behind `after`, '' for all, up to `last`, until it returns true or a
-- bound is reached. Returns the id behind which to go on; '' at the end, and for a key of another type. Chunks grow while
-- entries are small, because reading them copies them.
local function read_lane(lane, after, last, most, most_bytes, look)
  local looked, bytes, chunk = 0, 0, 1
  while looked < most and bytes < most_bytes do
    local start = start_behind(after)
    local entries = start and call_if_typed('XRANGE', lane_key(lane), start, last, 'COUNT', chunk) or {}
    for _, entry in ipairs(entries) do
      looked, after = looked + 1, entry[1]
      for _, text in ipairs(entry[2]) do bytes = bytes + #text end
      if look(after, entry[2]) then return after end
    end
    if #entries < chunk then return '' end
    chunk = math.max(1, math.min(chunk * 2, 64, MOST_UNSEEN, most - looked, math.floor(CHUNK_BYTES * looked / math.max(1, bytes))))
  end
  return after
end
