-- @include tenants
-- Tenants: a pull takes entries of those that were charged least.
local function add_pick(t)
  local NEARLY_LATE_MS, AHEAD, turns_key, precise = 3000, 3, t.turns_key, t.precise

  -- An entry of the index: its member of `ready`, its stream id, its size and limit.
  local function read(tenant, member)
    local ready, bytes, limit = string.match(member, '^(.-)%z(%d*) ?(%d*)$', #tenant.name + 19)
    return ready, ready and decode_id(ready), tonumber(bytes), tonumber(limit)
  end

  -- The next entry of a tenant: its member of `waiting`, then as `read`. Nil for none.
  local function next_of(lane, tenant)
    tenant.at = tenant.at + 1
    if tenant.at > #tenant.heads then
      if not tenant.more then return nil end
      if #tenant.gone > 0 then call('ZREM', WAITING, unpack(tenant.gone)) end
      tenant.offset = #tenant.heads - #tenant.gone + tenant.offset
      tenant.asked = math.min(64, tenant.asked * 4)
      tenant.heads, tenant.more = t.heads(lane, tenant.name, tenant.asked + tenant.offset)
      tenant.at, tenant.gone = 1 + tenant.offset, {}
      if #tenant.heads < tenant.at then return nil end
    end
    if tenant.at == 1 and tenant.asked == 2 then return tenant.heads[1], unpack(tenant.first, 1, 4) end
    return tenant.heads[tenant.at], read(tenant, tenant.heads[tenant.at])
  end

  -- The tenants that were charged least, with their first entries, `unknown` unless that is ready.
  local function first_tenants(lane, most)
    local rows, queue, names = call('ZRANGEBYSCORE', turns_key(lane), 0, '+inf', 'WITHSCORES', 'LIMIT', 0, most), {}, {}
    local firsts, lengths, owners = {}, {}, {}
    for i = 1, #rows, 2 do names[#names + 1] = rows[i] end
    t.load(names)
    for i, name in ipairs(names) do
      local tenant = {name = name, tokens = tonumber(rows[2 * i]), gone = {}, at = 0, offset = 0, asked = 2}
      tenant.heads, tenant.more = t.heads(lane, name, 2)
      queue[i] = tenant
      if tenant.heads[1] then
        local ready, id, bytes, limit = read(tenant, tenant.heads[1])
        tenant.first = {ready, id, bytes, limit}
        firsts[#firsts + 1], owners[#owners + 1], lengths[#lengths + 1] = ready or '', tenant, {name, limit}
      end
    end
    if #firsts > 0 then
      t.load_lengths(lengths)
      for i, score in ipairs(call('ZMSCORE', ready_key(lane), unpack(firsts))) do owners[i].unknown = not score end
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

  local function charge(lane, name, id, bytes, limit)
    local record, cost, prompt, class = t.change(name), t.cost(name, bytes, limit)
    t.picks[entry_field(lane, id)] = {name = name, cost = cost, prompt = prompt, class = class, sized = bytes}
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
    t.set_turn(lane, name, tokens + charge(lane, name, id, bytes, tonumber(limit)), true)
    t.remove(lane, id, raw, rank)
    if t.record(name).running >= t.record(name).most then t.leave(lane, name) end
    return id
  end

  -- Writes what a round has changed.
  local function end_round(lane, all, taken)
    local gone, turns = {}, {}
    if #taken > 0 then call('ZREM', ready_key(lane), unpack(taken)) end
    for _, tenant in ipairs(all) do
      for _, member in ipairs(tenant.gone) do gone[#gone + 1] = member end
    end
    if #gone > 0 then call('ZREM', WAITING, unpack(gone)) end
    for _, tenant in ipairs(all) do
      local record = t.record(tenant.name)
      local blocked = record.running >= record.most
      if tenant.at > 0 or blocked then
        local more = tenant.left or tenant.heads[tenant.at + 1] or tenant.more and t.heads(lane, tenant.name, 1)[1]
          or tenant.name == '' and t.bare(lane)
        turns[#turns + 1], turns[#turns + 2] = t.score(lane, tenant.name, tenant.tokens, more and not blocked), tenant.name
        if not more then call('HSET', SERVED, 'left|' .. lane, precise(tenant.tokens)) end
      end
    end
    if #turns > 0 then call('ZADD', turns_key(lane), unpack(turns)) end
  end

  local function round(lane, wanted, ids, stays)
    -- One more, because who comes first may have nothing in the index yet; and some if entries may be passed over.
    local queue, passed, stale, taken = first_tenants(lane, wanted - #ids + (some_interrupted and 16 or 1)), {}, 0, {}
    local all = {unpack(queue)}
    local function take(tenant, id, member, ready, bytes, limit)
      tenant.tokens = tenant.tokens + charge(lane, tenant.name, id, bytes, limit)
      tenant.gone[#tenant.gone + 1], taken[#taken + 1], ids[#ids + 1] = member, ready, id
    end
    while queue[1] and #ids < wanted and stale < 64 do
      local tenant = queue[1]
      local record = t.record(tenant.name)
      local member, ready, id, bytes, limit
      if record.running < record.most then member, ready, id, bytes, limit = next_of(lane, tenant) end
      local first = tenant.at == 1 and tenant.asked == 2
      if not member then
        table.remove(queue, 1)
      elseif not id or first and tenant.unknown or not first and not call('ZSCORE', ready_key(lane), ready) then
        -- A worker of an earlier release took it.
        tenant.gone[#tenant.gone + 1], stale = member, stale + 1
      elseif stays(id) then
        passed[#passed + 1] = {tenant, id, member, ready, bytes, limit}
      else
        take(tenant, id, member, ready, bytes, limit)
        sink(queue)
      end
    end
    for _, row in ipairs(passed) do
      if #ids < wanted then take(unpack(row, 1, 6)) else row[1].left = true end
    end
    end_round(lane, all, taken)
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
