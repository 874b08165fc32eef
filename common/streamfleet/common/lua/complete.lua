-- @include finish
-- @include lease
-- @include sign
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

local outcomes, ids, at = {}, {}, 3
while at <= #ARGV do
  local lane, size = tonumber(ARGV[at]), tonumber(ARGV[at + 7])
  outcomes[#outcomes + 1] = {lane = lane, id = ARGV[at + 1], at = at, size = size}
  ids[lane] = ids[lane] or {}
  table.insert(ids[lane], ARGV[at + 1])
  at = at + 8 + size
end
local holds, gone = held_of(ids, worker), {}

local function complete(lane, id, at, size)
  local attempt, request_id, reply, status, failure = tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  if holds[lane][id] ~= attempt then return published_before(worker, lane, id, attempt, request_id) and 3 or 0 end
  holds[lane][id] = nil
  if reply == '' then reply = nil end
  if not publish(request_id, status, signed({unpack(ARGV, at + 8, at + 7 + size)}, worker, lane, id, attempt), reply) then
    local whole = read_entry(lane, id, fetch_fields(lane, id) or {})
    whole.id, whole.reply = request_id, reply
    settle(lane, id, whole)
    return 2
  end
  gone[lane] = gone[lane] or {}
  table.insert(gone[lane], id)
  local fields = failure ~= '' and status ~= 'cancelled' and fetch_fields(lane, id)
  if fields then
    write_dead_letter(lane, id, fields, {request_id = request_id, status = status, error = failure, attempts = attempt})
  end
  count(status)
  return 1
end

local codes = {}
-- Whatever breaks halfway through, what was published by then is removed and counted.
local ok, refusal = pcall(function()
  for i, item in ipairs(outcomes) do codes[i] = complete(item.lane, item.id, item.at, item.size) end
end)
for lane, some in pairs(gone) do remove_entries(lane, some) end
write_counts()
if not ok then error(refusal) end
return codes
