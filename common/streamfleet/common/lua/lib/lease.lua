-- @include finish
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

-- Restarts the leases of some of a worker's entries in a lane. Returns {stream id = true} of those that still exist:
-- from Redis 7.0 on, claiming an entry that was XDELed by hand drops it.
local function stamp(lane, worker, ids)
  local claim, there = {'XCLAIM', lane_key(lane), GROUP, worker, 0, nil, nil}, {}
  for _, id in ipairs(ids) do claim[#claim + 1] = id end
  -- @guard renew: deliveries are left alone
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

-- A worker without the lease has kept output of a run; false or nil for none.
function KEPT.refuse(lane, id, run)
  -- @guard kept: the output of a worker without the lease is deleted
  if run and string.match(interruptions(lane, id), '^%d+ (%S+)') ~= run then redis.pcall('DEL', KEPT.key(run)) end
end

local HOME_MS = 10000

-- `gave_way_at`: the worker at which it gave way to an urgent request, if it did. `run`, `bytes`: of the output that was
-- kept; nil if none was, and then what was kept before still counts. `deadline`: nil for none.
local function note_interruption(lane, id, gave_way_at, run, bytes, deadline)
  local before = interruptions(lane, id)
  local record = tonumber(string.match(before, '^%d+') or 0) + (gave_way_at and 1 or 0)
  local output = run and string.format(' %s %.0f', run, bytes) or string.match(before, '^%d+( %S+ %d+)') or ''
  record = record .. output
  if gave_way_at and output ~= '' then
    local wait_ms = math.min(HOME_MS, deadline and (deadline - now_ms()) / 4 or HOME_MS)
    record = string.format('%s %.0f %s', record, now_ms() + wait_ms, gave_way_at)
  end
  KEPT.change(before, record)
  call('HSET', SCHED, interrupted_field(lane, id), record)
  if before == '' then some_interrupted = call('HINCRBY', SCHED, 'interrupted', 1) end
end
