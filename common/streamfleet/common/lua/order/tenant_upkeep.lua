-- @include hooks
-- Tenants: the housekeeping's part. What was deleted or moved by hand leaves turns and charges behind; here both are
-- brought to what is there, a bounded part in each call.
local function tidy_tenants()
  local t, o = sharing(), order()
  if not (t and o) then return end
  local PART, FORGET_MS, SERVED, some_shared = 200, 3600000, KEYS[SHARED - 3], false

  local function check_charge(name)
    local lane, id = lane_and_id(name)
    local row = lane and call('XPENDING', lane_key(lane), GROUP, id, id, 1)[1]
    if not lane or row and row[2] ~= NOBODY then return end
    -- @guard upkeep: a run that is over is charged no more
    t.back(lane, id)
    if not call('ZSCORE', DELAYED, name) and not HOOKS.waits(lane, id, fetch_fields(lane, id)) then t.drop(lane, {id}) end
  end

  local function check_record(name)
    local record, waits = t.record(name), false
    for lane = 1, LANE_COUNT do
      local tokens, in_turn = t.turn(lane, name)
      waits = waits or tokens ~= nil
      if not in_turn and record.running < record.most and o.shares(lane) and o.waits(lane, name) then
        -- @guard upkeep: who may run more since its limit was raised waits again
        t.enter(lane, name)
        t.unblocked = true
      end
    end
    local settled = record.charged == record.tokens   -- none of its requests waits with a charge for what it generated
    if record.running == 0 and settled and not (waits or record.new) and now_ms() - record.seen >= FORGET_MS then
      -- @guard upkeep: a tenant that has gone is forgotten
      t.forget_record(name)
    end
  end

  -- Charges of runs that are over, and records of tenants that are gone. Returns true once all were looked at, and their numbers.
  local function check_served()
    local cursor, charges, records = string.match(t.get('pass') or '', '^(%d+) (%d+) (%d+)$')
    local reply, names = call('HSCAN', SERVED, cursor or 0, 'COUNT', PART), {nil}
    charges, records = tonumber(charges) or 0, tonumber(records) or 0
    for i = 1, #reply[2], 2 do names[#names + 1] = string.match(reply[2][i], '^t|(.*)$') end
    t.fetch_records(names)
    for lane = 1, LANE_COUNT do t.load_turns(lane, names) end
    for i = 1, #reply[2], 2 do
      local kind, name = string.match(reply[2][i], '^(%a)|(.*)$')
      if kind == 'c' then
        charges = charges + 1
        check_charge(name)
      elseif kind == 't' then
        records = records + 1
        check_record(name)
      end
    end
    t.put('pass', string.format('%s %d %d', reply[1], charges, records))
    return reply[1] == '0', charges, records
  end

  -- @guard upkeep: what operators set counts within seconds
  call('HSET', LANES, 'tenants', t.rules())
  for lane = 1, LANE_COUNT do
    some_shared = some_shared or o.shares(lane)
    t.forget_turns(lane, o.shares(lane), PART)
  end
  local whole, charges, records = check_served()
  if not whole then return end
  t.put('pass', false)
  if some_shared or charges > 0 then return end
  for lane = 1, LANE_COUNT do
    t.put(t.level_field(lane), false)
    t.put('new|' .. DIGITS[lane], false)
  end
  if records == 0 then
    -- @guard upkeep: without tenants nothing is asked
    call('HDEL', LANES, 'tenants')
    t.put('known', false)
    t.put('usual', false)
  end
end
