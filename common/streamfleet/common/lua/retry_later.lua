-- @include finish
-- @include fence
-- @include wake
-- Hand requests back with their attempt counted, to be due later; the last attempt ends the request instead.
-- KEYS: shared. ARGV: 1 configuration; 2 worker; 3 most attempts; 4 JSON [[lane, stream id, attempt, delay ms, error,
--   lost, held]…], error being the OpenAI error object's JSON text of what went wrong, lost whether its worker ends with
--   it, held the output tokens for its time in the engine ('all': as many as were expected; false if nothing is charged).
-- Returns for each, up to where a bound allows (the rest is for another call): 1 will be tried again; 2 dead: the last
--   attempt; 3 expired: it would be due after its deadline; 4 ended: the id has a result, or is another
--   request's; 0 the lease was lost.
require_types()
open_for_writes()
local worker, most, rows = ARGV[2], tonumber(ARGV[3]), cjson.decode(ARGV[4])
local holds = fence(rows, worker, cfg.at_once)
local now, woken, bytes = now_ms(), nil, 0

local function message_of(failure)
  local read, value = pcall(cjson.decode, failure)
  return read and type(value) == 'table' and type(value.error) == 'table' and tostring(value.error.message) or failure
end

local function postpone(lane, id, attempt, delay, failure, lost, held)
  -- @guard retry_later: the fence
  if not holds(lane, id, attempt) then return 0 end
  local fields = fetch_fields(lane, id)
  if not fields then remove_entry(lane, id); count('vanished'); return 0 end
  -- @guard retry_later: an attempt is charged whatever becomes of its request
  HOOKS.handed_back(lane, id, nil, held)
  local size, deadline, given = skim_entry(lane, id, fields)   -- all of it is read only where it ends
  bytes = bytes + size
  -- @guard retry_later: not what ended
  if answered(request_id_of(given, lane, id)) then
    discard_duplicate(lane, id, read_entry(lane, id, fields), nil, attempt)
    return 4
  end
  -- @guard retry_later: not for ever
  if attempt >= most then
    local workers = workers_lost(attempts_record(lane, id), lost and worker or nil)
    local letter = {status = 'dead', attempts = attempt, error = failure, workers = workers}
    return end_with_dead_letter(lane, id, fields, read_entry(lane, id, fields), letter) and 2 or 4
  end
  -- @guard retry_later: not past the deadline
  if deadline and deadline <= now + delay then
    local late = deadline_error('before it could be tried again; the last fault: ' .. message_of(failure))
    local letter = {status = 'expired', attempts = attempt, error = late}
    return end_with_dead_letter(lane, id, fields, read_entry(lane, id, fields), letter) and 3 or 4
  end
  -- @guard retry_later: attempts are kept
  remember(lane, id, attempt, lost and worker or nil)
  if delay > 0 then
    call('ZADD', DELAYED, string.format('%.0f', now + delay), entry_field(lane, id))
  else
    make_ready(lane, id, fields)
    woken = math.min(woken or lane, lane)
  end
  -- @guard retry_later: no longer pending
  call('XACK', lane_key(lane), GROUP, id)
  return 1
end

local codes = {}
for i, row in ipairs(rows) do
  if i > cfg.at_once or bytes >= cfg.copied_bytes then break end
  codes[i] = postpone(unpack(row, 1, 7))
end
write_counts()
-- @guard retry_later: somebody is woken
if woken then wake(woken) end
return codes
