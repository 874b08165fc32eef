-- @include hooks
-- Bring turns and charges of tenants to what is there, and forget tenants that have gone. What was deleted or moved by hand leaves
-- turns and charges behind.
-- KEYS: shared. ARGV: 1 configuration; 2 number of all fields of `served` if none is of a tenant or a charge, else ''; then fields of
--   `served` to check. Returns nothing.
local t, o = sharing(), order()
if not (t and o) then return end
local SERVED, FORGET_MS, names = KEYS[SHARED - 3], 3600000, {nil}
require_types()
open_for_writes()

local function check_charge(name)
  local lane, id = lane_and_id(name)
  local row = lane and call('XPENDING', lane_key(lane), GROUP, id, id, 1)[1]
  if not lane or row and row[2] ~= NOBODY then return end
  -- @guard upkeep: a run that is over is charged no more
  t.back(lane, id)
  if not call('ZSCORE', DELAYED, name) and not HOOKS.waits(lane, id, fetch_fields(lane, id)) then t.drop(lane, {id}) end
end

local function check_turn(lane, record)
  local name, shared = record.name, o.shares(lane)
  local tokens, in_turn = t.turn(lane, name)
  if not in_turn and record.running < record.most and shared and o.waits(lane, name) then
    -- @guard upkeep: who may run more since its limit was raised waits again
    t.enter(lane, name)
    t.unblocked = t.unblocked or lane
  elseif tokens and not in_turn and record.running == 0 and (not shared or t.is_paid(lane, name)) then
    -- @guard tenants: nothing is left of turns of who has gone
    t.end_turn(lane, name)
  end
  return t.turn(lane, name)
end

local function check_record(name)
  local record, waits = t.record(name), false
  if math.max(record.seen, record.credited) > now_ms() then
    -- @guard upkeep: nothing of a tenant is ahead of a clock that was set back
    record = t.change(name)
    record.seen, record.credited = math.min(record.seen, now_ms()), math.min(record.credited, now_ms())
  end
  for lane = 1, LANE_COUNT do waits = check_turn(lane, record) or waits end
  local settled = record.charged == record.tokens   -- none of its requests waits with a charge for what it generated
  if record.running == 0 and settled and not (waits or record.new) and now_ms() - record.seen >= FORGET_MS then
    -- @guard upkeep: a tenant that has gone is forgotten
    t.forget_record(name)
  end
end

for i = 3, #ARGV do names[#names + 1] = string.match(ARGV[i], '^t|(.*)$') end
t.fetch_records(names)
for lane = 1, LANE_COUNT do t.load_turns(lane, names) end
for i = 3, #ARGV do
  local charge = string.match(ARGV[i], '^c|(.*)$')
  if charge then check_charge(charge) end
end
for _, name in ipairs(names) do check_record(name) end
HOOKS.write_changes()
-- @guard upkeep: without tenants nothing is asked
if tonumber(ARGV[2]) == call('HLEN', SERVED) then
  call('HDEL', LANES, 'tenants')
  call('UNLINK', SERVED)
end
