-- @include set_back
-- @include info
-- @include wake
-- Reclaim entries whose workers have stopped renewing; end those that have been delivered too often.
-- KEYS: shared; the hash `clock`.
-- ARGV: 1 configuration; 2 lease (ms); 3 most deliveries; 4 most entries per lane; 5 latest time that the
--   clock can show without a step forward (epoch ms), or ''. Returns {made ready again, dead, ended otherwise}.
require_groups()
-- @guard reclaim: a missing wake stream is noticed before a write
call('XPENDING', WAKE, GROUP, '-', '+', 1)   -- checked here: the read below would raise after writes
-- @guard reclaim: not by a clock that has stepped forward
if ARGV[5] ~= '' and now_ms() > tonumber(ARGV[5]) then return {0, 0, 0} end   -- nobody has renewed since the step
open_for_writes()
local lease_ms, most, limit = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local back, dead, ended, bytes, longest_ms, woken = 0, 0, 0, 0, longest_idle(lease_ms), nil

local function give_up(lane, id, fields, entry, deliveries, worker)
  local lost = workers_lost(attempts_record(lane, id), worker)
  local message = 'given up after ' .. deliveries .. ' deliveries; the workers lost with it: ' .. table.concat(lost, ', ')
  return end_with_dead_letter(lane, id, fields, entry, {status = 'dead', attempts = deliveries, workers = lost,
    error = openai_error(message, 'server_error', nil, 'max_deliveries')})
end

local function take_back(lane, id, worker, deliveries)
  local fields = fetch_fields(lane, id)
  if worker == NOBODY then   -- a watcher died between its read and its pull: never started, so not counted
    -- @guard reclaim: no attempt where none was made
    deliveries = 0
    -- @guard reclaim: staged where it was not yet
    count_staged(lane, id, fields)
  end
  if not fields then
    remove_entry(lane, id)
    count('vanished')
    ended = ended + 1
    return
  end
  local entry = read_entry(lane, id, fields)
  bytes = bytes + entry.bytes
  if answered(entry.id) then
    discard_duplicate(lane, id, entry, nil, deliveries)
    ended = ended + 1
  elseif deliveries >= most then
    if give_up(lane, id, fields, entry, deliveries, worker) then dead = dead + 1 else ended = ended + 1 end
  else
    -- @guard reclaim: attempts are kept
    if deliveries > 0 then remember(lane, id, deliveries, worker) end
    -- @guard hooks: the work of a lost worker is charged to nobody
    HOOKS.handed_back(lane, id)
    local _, _, late = come_back(lane, id, fields)
    -- @guard reclaim: no longer pending
    call('XACK', lane_key(lane), GROUP, id)
    back, ended = back + 1 - late, ended + late
    if late == 0 then woken = woken or lane end
  end
end

for lane = 1, LANE_COUNT do
  count_anew(lane)
  for _, row in ipairs(call('XPENDING', lane_key(lane), GROUP, 'IDLE', lease_ms, '-', '+', limit)) do
    -- @guard reclaim: bytes are bounded
    if bytes >= cfg.copied_bytes then break end   -- bodies are copied: the next call continues
    if row[3] > longest_ms then restart(lane, row[2], {row[1]}) else take_back(lane, row[1], row[2], row[4]) end
  end
end
if back + dead + ended == 0 then keep_look() end
for _, row in ipairs(call('XPENDING', WAKE, GROUP, 'IDLE', lease_ms, '-', '+', limit)) do call('XACK', WAKE, GROUP, row[1]) end
write_counts()
-- @guard reclaim: somebody is woken
if woken then wake(woken) end
return {back, dead, ended}
