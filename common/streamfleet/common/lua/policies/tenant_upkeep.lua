-- @include hooks
-- Tenants: the housekeeping's part. What was deleted or moved by hand leaves turns and charges behind; here both are
-- brought to what is there, a bounded part in each call.
local function tidy_tenants()
  local t = sharing()
  if not t then return end
  local PART, FORGET_MS, WAITING, SERVED = 200, 3600000, KEYS[SHARED - 5], KEYS[SHARED - 4]

  -- Pulls put what stands in no index there, and drop what they pick and is not ready; but not where nothing is ready.
  local function check_index(lane)
    local ready = call('ZCARD', ready_key(lane))
    t.write_index()
    local indexed = call('ZLEXCOUNT', WAITING, '[' .. lane, '(' .. lane + 1)
    -- @guard upkeep: what stands in no index takes turns
    if ready > indexed and not t.bare(lane) then t.begin_walk(lane) end
    if ready > 0 then return end
    local names = {['']=true}   -- for it, a walk goes on, and so ends here
    for _, member in ipairs(call('ZRANGEBYLEX', WAITING, '[' .. lane, '(' .. lane + 1, 'LIMIT', 0, PART)) do
      -- @guard upkeep: what is ready no more leaves the index
      call('ZREM', WAITING, member)
      names[string.match(member, '^%d([^%z]*)')] = true
    end
    for name in pairs(names) do
      if not t.heads(lane, name, 1)[1] then t.leave(lane, name) end
    end
  end

  local shared, some_shared = {}, false   -- by lane: true if something waits in the index; true if it does in one

  -- Charges of runs that are over, and records of tenants that are gone.
  local function check_served()
    local cursor, charges, records = string.match(t.get('pass') or '', '^(%d+) (%d+) (%d+)$')
    local reply = call('HSCAN', SERVED, cursor or 0, 'COUNT', PART)
    charges, records = tonumber(charges) or 0, tonumber(records) or 0
    local names = {}
    for i = 1, #reply[2], 2 do names[#names + 1] = string.match(reply[2][i], '^t|(.*)$') end
    t.fetch_records(names)
    for number = 1, LANE_COUNT do t.load_turns(number, names) end
    for i = 1, #reply[2], 2 do
      local kind, name = string.match(reply[2][i], '^(%a)|(.*)$')
      local lane, id = lane_and_id(kind == 'c' and name or '')
      if lane then
        charges = charges + 1
        local row = call('XPENDING', lane_key(lane), GROUP, id, id, 1)[1]
        if not row or row[2] == NOBODY then
          -- @guard upkeep: a run that is over is charged no more
          t.back(lane, id)
          if not call('ZSCORE', ready_key(lane), encode_id(id)) and not call('ZSCORE', DELAYED, name) then t.drop(lane, {id}) end
        end
      elseif kind == 't' then
        records = records + 1
        local record, waits = t.record(name), false
        for number = 1, LANE_COUNT do
          local tokens, waiting = t.turn(number, name)
          waits = waits or tokens ~= nil
          if not waiting and record.running < record.most and shared[number] and t.heads(number, name, 1)[1] then
            -- @guard upkeep: who may run more since its limit was raised waits again
            t.enter(number, name)
            t.unblocked = true
          end
        end
        local settled = record.charged == record.tokens   -- none of its requests waits with a charge for what it generated
        if record.running == 0 and settled and not (waits or record.new) and now_ms() - record.seen >= FORGET_MS then
          -- @guard upkeep: a tenant that has gone is forgotten
          t.forget_record(name)
        end
      end
    end
    t.put('pass', string.format('%s %d %d', reply[1], charges, records))
    return reply[1] == '0', charges, records
  end

  -- @guard upkeep: what operators set counts within seconds
  call('HSET', LANES, 'tenants', t.rules())
  for lane = 1, LANE_COUNT do
    shared[lane] = t.shares(lane, true)
    if shared[lane] then
      some_shared = true
      check_index(lane)
    end
    t.forget_turns(lane, PART)
  end
  local whole, charges, records = check_served()
  if not whole then return end
  t.put('pass', false)
  if some_shared or charges > 0 then return end
  for lane = 1, LANE_COUNT do t.put(t.level_field(lane), false) end
  if records == 0 then
    -- @guard upkeep: without tenants nothing is asked
    call('HDEL', LANES, 'tenants')
    t.put('known', false)
  end
end
