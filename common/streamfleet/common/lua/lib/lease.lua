-- @include finish
-- The fence: attempt number if this worker still holds the entry (in this same attempt, when given), else nil.
local function held(lane, id, worker, attempt)
  local row = call('XPENDING', lane_key(lane), GROUP, id, id, 1, worker)[1]
  if row and (not attempt or row[4] == attempt) then return row[4] end
end

-- The same for many at once: {lane = {stream id = attempt}} of the entries in `ids` that this worker holds, {lane =
-- {stream id…}}.
local function held_of(ids, worker)
  local found = {}
  for lane, some in pairs(ids) do
    local first, last, least, most = some[1], some[1], encode_id(some[1]), encode_id(some[1])
    for i = 2, #some do
      local order = encode_id(some[i])
      if order < least then first, least = some[i], order end
      if order > most then last, most = some[i], order end
    end
    local rows = call('XPENDING', lane_key(lane), GROUP, first, last, #some * 2, worker)
    found[lane] = {}
    for _, row in ipairs(rows) do found[lane][row[1]] = row[4] end
    if #rows == #some * 2 then   -- the range may hold more rows than were read
      for _, id in ipairs(some) do found[lane][id] = held(lane, id, worker) end
    end
  end
  return found
end

-- Restarts the leases of some of a worker's entries in a lane. Returns {stream id = true} of those that still exist:
-- from Redis 7.0 on, claiming an entry that was XDELed by hand drops it.
local function stamp(lane, worker, ids)
  local claim, there = {'XCLAIM', lane_key(lane), GROUP, worker, 0}, {}
  for _, id in ipairs(ids) do claim[#claim + 1] = id end
  claim[#claim + 1] = 'JUSTID'   -- resets the idle time and keeps the delivery counter
  for _, id in ipairs(call(unpack(claim))) do there[id] = true end
  for _, id in ipairs(ids) do
    if not there[id] then
      remove_entry(lane, id)
      count('vanished')
    end
  end
  return there
end
