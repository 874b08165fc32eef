-- @include come_back
-- @include fence
-- @include interrupt
-- @include wake
-- Hand requests back at their old rank, at once. No attempt is counted: a draining worker uses it.
-- KEYS: shared. ARGV: 1 configuration; 2 worker; 3 JSON [[lane, stream id, attempt, run, bytes, generated]…], run and bytes
--   of output that was kept, or false; generated: tokens that stay charged; or without the three; 4 '1': return
--   the unused turns to their lanes; otherwise a request that has to wait for room would use up every turn of a lane that has
--   only a share; 'gave way': they were interrupted, which counts for each.
-- Returns {number handed back; number examined}: examined ones that were not handed back are no longer this worker's.
--   The rest needs another call, because bodies are copied.
require_types()
open_for_writes()
local worker, leases, released, woken, unused = ARGV[2], cjson.decode(ARGV[3]), 0, nil, {}
local holds, looked_at, bytes, gave_way = fence(leases, worker, cfg.at_once), 0, 0, ARGV[4] == 'gave way'
for _, lease in ipairs(leases) do
  if looked_at >= cfg.at_once or bytes >= cfg.copied_bytes then break end
  looked_at = looked_at + 1
  local lane, id = lease[1], lease[2]
  local held = holds(lane, id, lease[3])
  local fields = held and fetch_fields(lane, id)
  if not fields then refuse_kept(lane, id, lease[4]) end
  if held then
    if fields then
      -- @guard release: an interruption is counted
      if gave_way or lease[4] then
        local _, deadline = skim_entry(lane, id, fields)
        note_interruption(lane, id, gave_way and worker, lease[4], lease[5], deadline)
      end
      -- @guard hooks: a request that is handed back is charged for what it generated
      HOOKS.handed_back(lane, id, tonumber(lease[6]) or 0)
      local size, _, ended = come_back(lane, id, fields)
      call('XACK', lane_key(lane), GROUP, id)
      released, bytes = released + 1, bytes + size
      if ended == 0 then woken = math.min(woken or lane, lane) end
      unused[lane] = ARGV[4] == '1'
    else
      remove_entry(lane, id)
      count('vanished')
    end
  end
end
write_counts()
for lane, turn in pairs(unused) do
  local field = 'credit:' .. LANE_NAMES[lane]
  if turn and tonumber(call('HGET', LANES, field) or 0) < 1000 then call('HSET', LANES, field, 1000) end
end
-- @guard release: at once, for somebody
if woken then wake(woken) end
return {released, looked_at}
