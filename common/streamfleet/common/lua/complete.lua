-- @include finish
-- @include lease
-- Publish outcomes and remove their entries: fenced, written once, notified, all at once.
-- KEYS: shared; then for each outcome its result and its reply stream (its result again when it has none): they are
--   declared because they may not exist yet, and a migrating cluster slot then refuses the call before any write.
-- ARGV: 1 configuration; 2 worker; then for each outcome: lane, stream id, attempt, request id, reply name or '', status,
--   error JSON or '', number of value strings, the result's field-value pairs.
-- Returns for each outcome: 1 published; 2 the id already had a result (cancelled, or a duplicate): entry removed;
--   0 the lease was lost: nothing written; 3 this very attempt was published by an earlier call whose answer got lost.
require_groups()
open_for_writes()
local worker = ARGV[2]

local function values_of(first, last)
  local values = {}
  for i = first, last do values[#values + 1] = ARGV[i] end
  return values
end

-- The script itself writes what later calls decide by: who published, at which attempt, for which entry.
local function signed(values, lane, id, attempt)
  for _, value in ipairs({'worker', worker, 'attempt', attempt, 'entry', entry_name(lane, id), 'lane', LANE_NAMES[lane]}) do
    values[#values + 1] = value
  end
  return values
end

local function published_before(lane, id, attempt, request_id)
  local result = call_if_typed('HMGET', result_key(request_id), 'worker', 'attempt', 'entry') or {}
  return result[1] == worker and tonumber(result[2]) == attempt and result[3] == entry_name(lane, id)
end

local function complete(lane, id, attempt, entry, status, failure, values)
  if not held(lane, id, worker, attempt) then return published_before(lane, id, attempt, entry.id) and 3 or 0 end
  local fields = failure ~= '' and fetch_fields(lane, id)
  if not publish(entry.id, status, signed(values, lane, id, attempt), entry.reply) then
    local whole = read_entry(lane, id, fetch_fields(lane, id) or {})
    whole.id, whole.reply = entry.id, entry.reply
    settle(lane, id, whole)
    return 2
  end
  if fields and status ~= 'cancelled' then
    write_dead_letter(lane, id, fields, {request_id = entry.id, status = status, error = failure, attempts = attempt})
  end
  count(status)
  remove_entry(lane, id)
  return 1
end

local codes, at = {}, 3
while at <= #ARGV do
  local size = tonumber(ARGV[at + 7])
  local entry = {id = ARGV[at + 3], reply = ARGV[at + 4] ~= '' and ARGV[at + 4] or nil}
  codes[#codes + 1] = complete(tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2]), entry, ARGV[at + 5], ARGV[at + 6],
    values_of(at + 8, at + 7 + size))
  at = at + 8 + size
end
write_counts()
return codes
