-- @include finish
-- @include fence
-- @include outcomes
-- Publish outcomes and remove their entries: fenced, written once, notified, all at once.
-- KEYS: shared; then for each outcome its result and its reply stream (its result again if it has none), so that a
--   cluster slot that moves refuses the call before any write; then the tokens of those whose results have `streamed`.
-- ARGV: 1 configuration; 2 worker; then for each outcome: lane, stream id, attempt, request id, reply name or '',
--   status, error JSON or '', output tokens for the time in the engine ('' if its use was counted, 'all': as
--   expected), digest of its bytes ('' without an id), number of names and values of its result; then these, by turns.
-- Returns for each outcome: 1 published; 2 the id had a result (cancelled, or a duplicate), or is another request's:
--   entry removed; 0 the lease was lost: nothing written; 3 published by an earlier call whose answer was lost.
local worker, outcomes, results = ARGV[2], read_outcomes()
-- This read of the lanes raises NOGROUP or WRONGTYPE before any write, as do the ones that follow.
local holds, gone = fence(outcomes, worker, #outcomes), {nil, nil, nil, nil}
-- @guard types: tries of another type is noticed before a write of complete
some_attempts()
-- @guard types: counts of another type is noticed before a write of complete
call('HLEN', COUNTS)
-- @guard types: dead of another type is noticed before a write of complete
call('XLEN', DEAD)
open_for_writes()
-- One check for all results, because there is rarely one.
local absent = #results > 0 and call('EXISTS', unpack(results)) == 0
local tried, codes = outcomes[2] and {}, {nil}
HOOKS.will_end(outcomes)

local function complete(item)
  local lane, id, attempt, at = item[1], item[2], item[3], item.at
  local request_id, reply, status, failure = ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  -- @guard complete: the fence
  if not holds(lane, id, attempt) then return published_before(worker, lane, id, attempt, request_id) and 3 or 0 end
  if reply == '' then reply = nil end
  local values, n = values_of(item)
  local new = absent and not (tried and tried[request_id])
  if tried then tried[request_id] = true end
  local tokens = #KEYS > SHARED + 2 * #outcomes and tokens_of(values, n, attempt) or nil
  -- @guard hooks: a run that has ended is settled
  HOOKS.run_ended(lane, id, status, values, n, ARGV[at + 7])
  -- @guard complete: the result says who wrote it
  n = sign(values, n, worker, lane, id, attempt)
  if not new and answered(request_id)
      or other_request(request_id, values[n - 2], reply, ARGV[at + 8], cfg.result_ttl_ms) then   -- its entry, as signed
    local whole = read_entry(lane, id, fetch_fields(lane, id) or {})
    whole.id, whole.reply, whole.digest = request_id, reply, ARGV[at + 8]
    discard_duplicate(lane, id, whole, run_of(values, n), attempt)
    return 2
  end
  publish_pairs(request_id, status, values, n, reply, tokens, new)
  gone[lane] = gone[lane] or {nil}
  table.insert(gone[lane], id)
  local fields = failure ~= '' and status ~= 'cancelled' and fetch_fields(lane, id)
  if fields then
    write_dead_letter(lane, id, fields, {request_id = request_id, status = status, error = failure, attempts = attempt})
  end
  count(status)
  return 1
end

-- If anything fails halfway, the outcomes published so far are removed and counted.
local ok, refusal = pcall(function()
  for i, item in ipairs(outcomes) do codes[i] = complete(item) end
end)
for lane, some in pairs(gone) do remove_entries(lane, some) end
HOOKS.freed(worker, #outcomes)
write_counts()
if not ok then error(refusal) end
return codes
