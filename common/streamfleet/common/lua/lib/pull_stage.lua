-- @include finish
-- @include lease
-- First part of a pull: bring every entry that arrived into its lane's ready set.

-- What a blocking read delivered to a watcher goes back, so that the pull can pick the best instead. Delivered entries
-- are held by NOBODY: if the watcher dies first, reclaiming them counts no attempt. Returns how many went back.
local function put_back(hints)
  local back = 0
  for _, hint in ipairs(hints) do
    local lane, id = hint[1], hint[2]
    if lane == 0 then
      call('XACK', WAKE, GROUP, id)
      call('XDEL', WAKE, id)
    elseif held(lane, id, NOBODY) then
      local fields = fetch_fields(lane, id)
      if fields then make_ready(lane, id, fields) else count('vanished') end
      call('XACK', lane_key(lane), GROUP, id)
      count('staged')
      back = back + 1
    end
  end
  return back
end

local function read_new(chunk)
  local command = {'XREADGROUP', 'GROUP', GROUP, NOBODY, 'COUNT', chunk, 'NOACK', 'STREAMS'}
  for lane = 1, LANE_COUNT do command[#command + 1] = lane_key(lane) end
  for _ = 1, LANE_COUNT do command[#command + 1] = '>' end
  return call(unpack(command)) or {}
end

-- Bounded in entries and bytes, because XREADGROUP copies bodies into Lua; the chunk grows with the sizes seen, so that
-- a few huge bodies cannot stall the server together. Returns how many wait in each lane, and how many were staged.
local function stage(limits)
  local lane_of, waiting = {}, {}
  for lane = 1, LANE_COUNT do lane_of[lane_key(lane)] = lane; waiting[lane] = call('ZCARD', ready_key(lane)) end
  local staged, bytes, largest, chunk, more = 0, 0, 1, 1, true
  while more and staged < limits.stage_entries and bytes < limits.stage_bytes do
    more = false
    for _, stream in ipairs(read_new(chunk)) do
      local lane, entries = lane_of[stream[1]], stream[2]
      local add = {'ZADD', ready_key(lane)}
      for _, item in ipairs(entries) do
        local entry = read_entry(lane, item[1], item[2])
        bytes, largest = bytes + entry.bytes, math.max(largest, entry.bytes)
        add[#add + 1] = string.format('%.0f', entry.rank)
        add[#add + 1] = encode_id(item[1])
        count('staged')
      end
      call(unpack(add))
      waiting[lane], staged = waiting[lane] + #entries, staged + #entries
      if #entries == chunk then more = true end
    end
    chunk = math.max(1, math.min(chunk * 2, 64, math.floor(65536 / largest)))
  end
  return waiting, staged
end
