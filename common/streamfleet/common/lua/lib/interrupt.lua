-- @include interrupted
-- A run is interrupted, or its output so far is kept: its worker tells.
local HOME_MS = 10000

-- A worker without the lease has kept output of a run; false or nil for none.
local function refuse_kept(lane, id, run)
  -- @guard kept: the output of a worker without the lease is deleted
  if run and string.match(interruptions(lane, id), '^%d+ (%S+)') ~= run then redis.pcall('DEL', kept_key(run)) end
end

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
  change_kept(before, record)
  if call_if_typed('HSET', ENTRIES, interrupted_field(lane, id), record) == 1 then
    some_interrupted = call('HINCRBY', LANES, 'interrupted', 1)
  end
end
