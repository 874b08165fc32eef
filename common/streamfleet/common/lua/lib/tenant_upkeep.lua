-- @include tenants
-- Tenants: the housekeeping's part. A worker of an earlier release takes, returns and ends requests without a look at
-- turns and charges; here both are brought to what is there, a bounded part in each call.
local function tidy_tenants()
  local t = sharing()
  if not t then return end
  local PART, FORGET_MS = 200, 3600000

  -- Entries that are ready and in no index, and those in the index that are not ready.
  local function check_index(lane)
    local ready, place = call('ZCARD', ready_key(lane)), 'place|' .. lane
    t.write_index()
    local walk = t.bare(lane)
    -- @guard upkeep: a walk ends where nothing is ready
    if walk and ready == 0 then
      walk.done = true
      if not t.heads(lane, '', 1)[1] then t.leave(lane, '') end
    end
    if ready == call('ZLEXCOUNT', WAITING, '[' .. lane, '(' .. lane + 1) then return end
    local from, bytes, rows = tonumber(t.get(place) or 0) or 0, 0, {}
    if from < ready and not walk then rows = call('ZRANGE', ready_key(lane), from, from + PART - 1, 'WITHSCORES') end
    for i = 1, #rows, 2 do
      if bytes >= cfg.copied_bytes then break end
      from = from + 1
      local id = decode_id(rows[i])
      local fields = id and fetch_fields(lane, id)
      if fields then
        local size, _, _, tenant = skim_entry(lane, id, fields)
        -- @guard upkeep: what an earlier release staged takes turns
        t.add(lane, id, rows[i + 1], tenant, fields)
        bytes = bytes + size
      end
    end
    t.put(place, tostring(from < ready and from or 0))
    local behind = t.get('behind|' .. lane) or lane
    t.write_index()
    local members = call('ZRANGEBYLEX', WAITING, '(' .. behind, '(' .. lane + 1, 'LIMIT', 0, PART)
    for _, member in ipairs(members) do
      local name, known = string.match(member, '^%d(.-)%z%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d(.-)%z')
      -- @guard upkeep: what is ready no more leaves the index
      if not known or not call('ZSCORE', ready_key(lane), known) then call('ZREM', WAITING, member) end
      if name and not t.heads(lane, name, 1)[1] then t.leave(lane, name) end
    end
    t.put('behind|' .. lane, #members == PART and members[PART] or tostring(lane))
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
      local field, value = reply[2][i], reply[2][i + 1]
      local kind, name = string.match(field, '^(%a)|(.*)$')
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
        if record.running == 0 and not (waits or record.new) and now_ms() - record.seen >= FORGET_MS then
          -- @guard upkeep: a tenant that has gone is forgotten
          t.forget_record(name)
        end
      end
    end
    t.put('pass', string.format('%s %d %d', reply[1], charges, records))
    return reply[1] == '0', charges, records
  end

  -- @guard upkeep: what operators set counts within seconds
  call('HSET', SCHED, 'tenants', t.rules())
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
  for lane = 1, LANE_COUNT do
    for _, what in ipairs({'level|', 'place|', 'behind|'}) do t.put(what .. lane, false) end
  end
  if records == 0 then
    -- @guard upkeep: without tenants nothing is asked
    call('HDEL', SCHED, 'tenants')
    t.put('known', false)
  end
end
