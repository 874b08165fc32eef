-- @include attempts
-- The fence of a worker's writes: its leases, by attempt.

-- Attempt numbers of a worker's entries in a lane: {stream id = attempt}. One command reads the worker's own entries from the
-- smallest to the largest time. If it holds so many others between them that the bound is reached, each is looked up.
local function held_in(lane, ids, worker)
  local first = string.match(ids[1], '^%d+')
  local last = first
  for i = 2, #ids do
    local ms = string.match(ids[i], '^%d+')   -- text: a number cannot hold 64 bits
    if #ms < #first or #ms == #first and ms < first then first = ms end
    if #ms > #last or #ms == #last and ms > last then last = ms end
  end
  local found, rows = {}, call('XPENDING', lane_key(lane), GROUP, first, last, #ids * 2, worker)
  for _, row in ipairs(rows) do found[row[1]] = row[4] end
  -- @guard fence: a range of more entries than one command reads
  if #rows == #ids * 2 then
    for _, id in ipairs(ids) do found[id] = held_attempt(lane, id, worker) end
  end
  return found
end

-- The fence, for the first `most` of the rows {lane, stream id, attempt, …}. Returns a function of these three that is
-- true, once, if this worker holds the entry in this attempt. Raises NOGROUP for a missing group: call it before any
-- write.
local function fence(rows, worker, most)
  if rows[1] and not rows[2] then   -- nearly all, where requests are few
    local lane, id = rows[1][1], rows[1][2]
    local alone = held_attempt(lane, id, worker)
    return function(_, _, attempt) return attempt == alone end
  end
  local ids, holds = {}, {}
  for i = 1, math.min(#rows, most) do
    local lane, id = rows[i][1], rows[i][2]
    ids[lane] = ids[lane] or {nil}
    table.insert(ids[lane], id)
  end
  for lane, some in pairs(ids) do holds[lane] = held_in(lane, some, worker) end
  return function(lane, id, attempt)
    if holds[lane][id] ~= attempt then return false end
    -- @guard fence: a lease counts once
    holds[lane][id] = nil
    return true
  end
end
