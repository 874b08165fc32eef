-- @include tenants
-- Tenants: a pull takes entries of those that were charged least.
local function add_pick(t)
  local NEARLY_LATE_MS, AHEAD, turns_key, precise = 3000, 3, t.turns_key, t.precise

  -- The next entry of a tenant: its member of `waiting` and of `ready`, its stream id, and its cost. Nil for none.
  local function next_of(lane, tenant)
    tenant.at = tenant.at + 1
    if tenant.at > #tenant.heads then
      if not tenant.more then return nil end
      if #tenant.gone > 0 then call('ZREM', WAITING, unpack(tenant.gone)) end
      tenant.heads, tenant.more = t.heads(lane, tenant.name, tenant.asked)
      tenant.at, tenant.gone, tenant.asked = 1, {}, math.min(64, tenant.asked * 4)
      if #tenant.heads == 0 then return nil end
    end
    local member = tenant.heads[tenant.at]
    local ready, bytes, limit = string.match(member, '^(.-)%z(%d*) ?(%d*)$', #tenant.name + 19)
    return member, ready, ready and decode_id(ready), t.cost(tenant.name, tonumber(bytes), tonumber(limit))
  end

  local function first_tenants(lane, most)
    local rows, queue = call('ZRANGEBYSCORE', turns_key(lane), 0, '+inf', 'WITHSCORES', 'LIMIT', 0, most), {}
    for i = 1, #rows, 2 do
      queue[#queue + 1] = {name = rows[i], tokens = tonumber(rows[i + 1]), heads = {}, gone = {}, at = 0, asked = 2, more = true}
    end
    return queue
  end

  local function sink(queue)   -- its first tenant was charged
    local first, i = queue[1], 1
    while queue[i + 1] and queue[i + 1].tokens < first.tokens do
      queue[i] = queue[i + 1]
      i = i + 1
    end
    queue[i] = first
  end

  local function charge(lane, name, id, cost)
    local record = t.change(name)
    t.picks[entry_field(lane, id)] = {name = name, cost = cost}
    record.running = record.running + 1
    return cost / record.weight
  end

  -- A request that is nearly late may go first if its tenant is only a few such requests ahead. Returns its id or nil.
  local function nearly_late(lane, stays)
    local now = now_ms()
    local member, rank = unpack(call('ZRANGEBYSCORE', ready_key(lane), now + 1, now + NEARLY_LATE_MS, 'WITHSCORES', 'LIMIT', 0, 1))
    local id = member and decode_id(member)
    local fields = id and fetch_fields(lane, id)
    if not fields or stays(id) then return nil end
    local _, deadline, _, raw = skim_entry(lane, id, fields)
    local name, bytes, limit = t.name(raw), t.size(fields)
    local tokens, waits = t.turn(lane, name)
    local cost = t.cost(name, bytes, tonumber(limit))
    -- @guard tenants: who is nearly late goes before few of its tenant
    if not (deadline and waits) or tokens - t.level(lane) > AHEAD * cost / t.record(name).weight then return nil end
    call('ZREM', ready_key(lane), member)
    t.set_turn(lane, name, tokens + charge(lane, name, id, cost), true)
    t.remove(lane, id, raw, rank)
    if t.record(name).running >= t.record(name).most then t.leave(lane, name) end
    return id
  end

  -- Writes back the turns of tenants after a round.
  local function end_round(lane, all)
    for _, tenant in ipairs(all) do
      if #tenant.gone > 0 then call('ZREM', WAITING, unpack(tenant.gone)) end
      local record = t.record(tenant.name)
      local blocked = record.running >= record.most
      if tenant.at > 0 or blocked then
        local more = tenant.heads[tenant.at + 1] or tenant.more and t.heads(lane, tenant.name, 1)[1]
          or tenant.name == '' and t.bare(lane)
        t.set_turn(lane, tenant.name, tenant.tokens, more and not blocked)
        if not more then call('HSET', SERVED, 'left|' .. lane, precise(tenant.tokens)) end
      end
    end
  end

  local function round(lane, wanted, ids, stays)
    -- One more, because who comes first may have nothing in the index yet; and some if entries may be passed over.
    local queue, passed, stale = first_tenants(lane, wanted - #ids + (some_interrupted and 16 or 1)), {}, 0
    local all = {unpack(queue)}
    local function take(tenant, id, cost)
      tenant.tokens = tenant.tokens + charge(lane, tenant.name, id, cost)
      ids[#ids + 1] = id
    end
    while queue[1] and #ids < wanted and stale < 64 do
      local tenant = queue[1]
      local record = t.record(tenant.name)
      local member, ready, id, cost
      if record.running < record.most then member, ready, id, cost = next_of(lane, tenant) end
      if member then tenant.gone[#tenant.gone + 1] = member end
      if not member then
        table.remove(queue, 1)
      elseif not id or call('ZREM', ready_key(lane), ready) == 0 then   -- a worker of an earlier release took it
        stale = stale + 1
      elseif stays(id) then
        passed[#passed + 1] = {tenant, id, cost, member, ready}
      else
        take(tenant, id, cost)
        sink(queue)
      end
    end
    for _, row in ipairs(passed) do
      if #ids < wanted then take(unpack(row, 1, 3)) else row.left = true end
    end
    end_round(lane, all)
    for _, row in ipairs(passed) do
      if row.left then
        local rank = tonumber(string.sub(row[4], #row[1].name + 3, #row[1].name + 18))
        call('ZADD', WAITING, 0, row[4])
        call('ZADD', ready_key(lane), rank, row[5])
        t.enter(lane, row[1].name)
      end
    end
    return #all > 0
  end

  -- Takes up to `wanted` entries out of the ready set, as `pop` does, and returns their stream ids.
  function t.pop(lane, wanted, worker)
    local passed = 0
    local function stays(id)
      local waits = some_interrupted and passed < 16 and waits_for_another(lane, id, worker)
      passed = passed + (waits and 1 or 0)
      return waits
    end
    local ids, rounds = {nearly_late(lane, stays)}, 0
    while #ids < wanted and rounds < 4 and round(lane, wanted, ids, stays) do rounds = rounds + 1 end
    -- A worker of an earlier release may have staged entries that are in no index; with nothing else left, they go by rank.
    -- @guard tenants: what stands in no index is taken too
    if #ids < wanted and not t.shares(lane, true) then
      local some = call('ZPOPMIN', ready_key(lane), wanted - #ids)
      for i = 1, #some, 2 do ids[#ids + 1] = decode_id(some[i]) end
    end
    return ids
  end
end
