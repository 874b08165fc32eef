-- Tenants: a pull takes entries of those that were charged least.
local WAITING = KEYS[SHARED - 5]

return function(t)
  local NEARLY_LATE_MS, AHEAD, MOST_ROUNDS = 3000, 3, 256
  local NONE = {}
  local looked = {}   -- by lane: true if its nearly late were looked for
  local passed        -- number of entries that a `pop` left to others

  -- The next entry of a tenant in the index: its member of `waiting`; nil for none.
  local function next_of(lane, tenant)
    local at = tenant.at + 1
    if at > #tenant.heads then
      if not tenant.more then return nil end
      tenant.asked = math.min(64, tenant.asked * 4)
      tenant.heads, tenant.more = t.heads(lane, tenant.name, tenant.asked, tenant.heads[at - 1])
      at = 1
    end
    tenant.at = at
    return tenant.heads[at]
  end

  -- The tenants of rows that t.lowest returned.
  local function tenants_of(rows)
    local names, queue = {nil}, {nil}
    for i = 1, #rows, 2 do names[(i + 1) / 2] = rows[i] end
    t.fetch_records(names)
    for i, name in ipairs(names) do
      queue[i] = {name = name, record = t.record(name), tokens = math.min(tonumber(rows[2 * i]), t.most_tokens), heads = NONE,
        more = true, at = 0, asked = 0.5, touched = false}
    end
    return queue
  end

  -- A queue has tenants in order of their tokens. Most of those that were charged go to its end.
  local function put_behind(queue, tenant)
    local place = #queue + 1
    while place > 1 and queue[place - 1].tokens > tenant.tokens do
      queue[place] = queue[place - 1]
      place = place - 1
    end
    queue[place] = tenant
  end

  -- Charges a pick: a row with its id, its tenant's name, and the size and asked limit of its body. Returns what that is
  -- for the tenant's weight.
  local function charge(row)
    local record = t.change(row.name)
    row.record, row.cost, row.prompt, row.class = record, t.cost(record, row.bytes, row.limit)
    t.picks[row.id], record.running = row, record.running + 1
    return row.cost / record.weight
  end

  local function take_back(row)
    local tenant, record = row.tenant, row.record
    tenant.tokens = math.max(0, tenant.tokens - row.cost / record.weight)
    record.running, t.picks[row.id] = record.running - 1, nil
  end

  -- True for an entry that is left to another worker, of a bounded number in each `pop`; and true if it was interrupted there.
  local function stays(lane, id, worker)
    local held = some_interrupted and passed < 16 and waits_for_another(lane, id, worker)
    local waits = held or some_sessions and passed < 64 and homing() and homes().elsewhere(lane, id)
    if waits then passed = passed + 1 end
    return waits, held
  end

  -- A request that is nearly late may go first if its tenant is only a few such requests ahead. Returns its id or nil.
  local function nearly_late(lane, worker)
    local now = now_ms()
    local member, rank = unpack(call('ZRANGEBYSCORE', ready_key(lane), now + 1, now + NEARLY_LATE_MS, 'WITHSCORES', 'LIMIT', 0, 1))
    local id = member and decode_id(member)
    if not id or stays(lane, id, worker) or not t.take_one(lane, id, member, rank, true) then return nil end
    return id
  end

  -- Takes an entry if its tenant waits, and is only a few such requests ahead. Returns true if it did.
  function t.take_one(lane, id, member, rank, late)
    local fields = fetch_fields(lane, id)
    if not fields then return false end
    local _, deadline, _, raw = skim_entry(lane, id, fields)
    local name, bytes, limit = t.name(raw), t.size(fields)
    local tokens, waits = t.turn(lane, name)
    local record = t.record(name)
    local cost = t.cost(record, bytes, tonumber(limit))
    -- @guard tenants: who got to its limit by picks of another lane takes no more
    if record.running >= record.most then return false end
    -- @guard tenants: who is nearly late goes before few of its tenant
    if not waits or late and not deadline or tokens - t.level(lane) > AHEAD * cost / record.weight then
      return false
    end
    call('ZREM', ready_key(lane), member)
    t.ranks[id] = rank
    t.set_turn(lane, name, tokens + charge({id = id, name = name, bytes = bytes, limit = tonumber(limit)}), true)
    t.remove(lane, id, raw, rank)
    if record.running >= record.most then t.leave(lane, name) end
    return true
  end

  -- Takes picked entries out of the ready set and the index. What is not ready, because the ready set was changed by hand, is
  -- not taken: it may run.
  local function take_out(lane, picked, gone, ids)
    local members = {nil}
    for i = 1, #picked do members[i], gone[#gone + 1] = picked[i].ready, picked[i].member end
    if gone[1] then call('ZREM', WAITING, unpack(gone)) end
    if not members[1] then return end
    for i, rank in ipairs(call('ZMSCORE', ready_key(lane), unpack(members))) do
      local row = picked[i]
      if rank then
        ids[#ids + 1], t.ranks[row.id] = row.id, rank
      else
        -- @guard tenants: what is not ready is not charged
        take_back(row)
      end
    end
    call('ZREM', ready_key(lane), unpack(members))
  end

  -- Writes the turns that a round has changed.
  local function end_round(lane, touched)
    local scores, n = {nil, nil}, 0
    for i = 1, #touched do
      local tenant, record = touched[i], touched[i].record
      local more = tenant.left or tenant.heads[tenant.at + 1] or tenant.more and t.heads(lane, tenant.name, 1)[1]
        or tenant.name == '' and t.bare(lane)
      scores[n + 1] = t.score(tenant.tokens, more and record.running < record.most)
      scores[n + 2], n = tenant.name, n + 2
    end
    t.store_turns(lane, scores)
  end

  local function pick(lane, row, picked)
    local tenant = row.tenant
    t.reached[lane] = math.max(t.reached[lane] or 0, tenant.tokens)
    picked[#picked + 1] = row
    tenant.tokens = tenant.tokens + charge(row)
  end

  -- Returns the number of entries in the index that were not to be taken.
  local function round(lane, rows, wanted, ids, worker)
    local queue, picked, left, gone, touched, before, first = tenants_of(rows), {nil}, nil, {nil}, {nil}, #ids, 0
    wanted = wanted - before
    while #picked < wanted and #gone < MOST_ROUNDS do
      local tenant = table.remove(queue, 1)
      if not tenant then break end
      local record, member = tenant.record, nil
      if not tenant.touched then tenant.touched, touched[#touched + 1] = true, tenant end
      if record.running < record.most then member = next_of(lane, tenant) end
      if member then
        local ready, bytes, limit = string.match(member, '^([^%z]*)%z(%d*) ?(%d*)$', #tenant.name + 19)
        local id = ready and decode_id(ready)
        if not id or t.picks[id] then   -- written by hand, or it stands there twice
          gone[#gone + 1] = member
        else
          local row = {tenant = tenant, name = tenant.name, id = id, member = member, ready = ready,
            bytes = bytes ~= '' and bytes, limit = tonumber(limit), record = record, cost = 0, prompt = 0, class = ''}
          local waits, held = stays(lane, id, worker)
          if waits then
            left = left or {}
            local place = #left + 1
            -- @guard affinity: what was interrupted elsewhere goes first
            if held then first, place = first + 1, first + 1 end
            table.insert(left, place, row)
          else
            pick(lane, row, picked)
          end
        end
        put_behind(queue, tenant)
      end
    end
    for _, row in ipairs(left or NONE) do
      local more = #picked < wanted and row.record.running < row.record.most
      if more and not t.picks[row.id] then pick(lane, row, picked) else row.tenant.left = true end
    end
    take_out(lane, picked, gone, ids)
    end_round(lane, touched)
    return #gone - (#ids - before)
  end

  -- Takes up to `wanted` entries out of the ready set, as `pop` does, and returns their stream ids; nil if tenants do not
  -- share the lane.
  function t.pop(lane, wanted, worker)
    local ids, rounds = {nil}, 0
    passed = 0
    -- Some more if entries may be passed over.
    local more = (some_interrupted or homing()) and 16 or 0
    local rows = t.lowest(lane, wanted + more)
    if rows[1] and not looked[lane] then   -- once in a call
      looked[lane], ids[1] = true, nearly_late(lane, worker)
      if ids[1] and wanted > 1 then rows = t.lowest(lane, wanted - 1 + more) end
    end
    while #ids < wanted and rows[1] and rounds < MOST_ROUNDS do
      rounds = rounds + 1 + round(lane, rows, wanted, ids, worker)
      if #ids < wanted then rows = t.lowest(lane, wanted - #ids + more) end
    end
    -- @guard tenants: what stands in no index is taken too
    if not ids[1] and not t.shares(lane, true) then return nil end
    return ids
  end
end
