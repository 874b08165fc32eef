-- @include tenants
-- Tenants: a pull takes entries of those that were charged least.
local function add_pick(t)
  local NEARLY_LATE_MS, AHEAD = 3000, 3

  -- The next entry of a tenant in the index: its member of `waiting`; nil for none.
  local function next_of(lane, tenant)
    tenant.at = tenant.at + 1
    if tenant.at > #tenant.heads then
      if not tenant.more then return nil end
      if #tenant.gone > 0 then call('ZREM', WAITING, unpack(tenant.gone)) end
      local seen = #tenant.heads - #tenant.gone   -- they were passed over
      tenant.asked = math.min(64, tenant.asked * 4)
      tenant.heads, tenant.more = t.heads(lane, tenant.name, tenant.asked + seen)
      tenant.at, tenant.gone = 1 + seen, {}
    end
    return tenant.heads[tenant.at]
  end

  -- An entry of the index: its member of `ready`, and its size and limit.
  local function read(tenant, member) return string.match(member, '^(.-)%z(%d*) ?(%d*)$', #tenant.name + 19) end

  -- The tenants of rows that t.lowest returned.
  local function tenants_of(rows)
    local names, queue = {}, {}
    for i = 1, #rows, 2 do
      local name = rows[i]
      names[#names + 1] = name
      queue[#queue + 1] = {name = name, tokens = rows[i + 1], heads = {}, more = true, gone = {}, at = 0, asked = 0.5}
    end
    t.fetch_records(names)
    return queue
  end

  -- Tenants in order of their tokens: those that were charged are in a list of their own, most of them at its end.
  local function make_queue(tenants)
    local at, charged, charged_at = 1, {}, 1
    local queue = {}

    function queue.next()   -- takes the first out
      local fresh, other = tenants[at], charged[charged_at]
      if fresh and not (other and other.tokens < fresh.tokens) then
        at = at + 1
        return fresh
      end
      charged_at = charged_at + (other and 1 or 0)
      return other
    end

    function queue.back(tenant)
      local place = #charged + 1
      while place > charged_at and charged[place - 1].tokens > tenant.tokens do
        charged[place] = charged[place - 1]
        place = place - 1
      end
      charged[place] = tenant
    end

    return queue
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
    if not id or stays(id) or not t.take_one(lane, id, member, rank, true) then return nil end
    return id
  end

  -- Takes an entry if its tenant waits, and is only a few such requests ahead. Returns true if it did.
  function t.take_one(lane, id, member, rank, late)
    local fields = fetch_fields(lane, id)
    if not fields then return false end
    local _, deadline, _, raw = skim_entry(lane, id, fields)
    local name, bytes, limit = t.name(raw), t.size(fields)
    local tokens, waits = t.turn(lane, name)
    local cost = t.cost(name, bytes, tonumber(limit))
    -- @guard tenants: who is nearly late goes before few of its tenant
    if not waits or late and not deadline or tokens - t.level(lane) > AHEAD * cost / t.record(name).weight then
      return false
    end
    call('ZREM', ready_key(lane), member)
    t.set_turn(lane, name, tokens + charge(lane, name, id, bytes, tonumber(limit)), true)
    t.remove(lane, id, raw, rank)
    if t.record(name).running >= t.record(name).most then t.leave(lane, name) end
    return true
  end

  -- Writes what a round has changed.
  local function end_round(lane, touched)
    local gone = {}
    for tenant in pairs(touched) do
      for _, member in ipairs(tenant.gone) do gone[#gone + 1] = member end
    end
    if #gone > 0 then call('ZREM', WAITING, unpack(gone)) end
    for tenant in pairs(touched) do
      local record = t.record(tenant.name)
      local more = tenant.left or tenant.heads[tenant.at + 1] or tenant.more and t.heads(lane, tenant.name, 1)[1]
        or tenant.name == '' and t.bare(lane)
      t.set_turn(lane, tenant.name, tenant.tokens, more and record.running < record.most and true or false)
      if not more then t.put('left|' .. lane, string.format('%.3f', tenant.tokens)) end
    end
  end

  local function round(lane, rows, wanted, ids, stays)
    local queue, passed, stale, touched = make_queue(tenants_of(rows)), {}, 0, {}
    local function take(tenant, id, member, ready, bytes, limit)
      -- A worker of an earlier release may have taken it.
      if call('ZREM', ready_key(lane), ready) == 0 then
        stale = stale + 1
      else
        tenant.tokens = tenant.tokens + charge(lane, tenant.name, id, bytes, limit)
        ids[#ids + 1] = id
      end
      tenant.gone[#tenant.gone + 1] = member
    end
    while #ids < wanted and stale < 64 do
      local tenant = queue.next()
      if not tenant then break end
      local record, member = t.record(tenant.name), nil
      touched[tenant] = true
      if record.running < record.most then member = next_of(lane, tenant) end
      if member then
        local ready, bytes, limit = read(tenant, member)
        local id = ready and decode_id(ready)
        if not id then
          tenant.gone[#tenant.gone + 1], stale = member, stale + 1
        elseif stays(id) then
          passed[#passed + 1] = {tenant, id, member, ready, tonumber(bytes), tonumber(limit)}
        else
          take(tenant, id, member, ready, tonumber(bytes), tonumber(limit))
        end
        queue.back(tenant)
      end
    end
    for _, row in ipairs(passed) do
      if #ids < wanted then take(unpack(row, 1, 6)) else row[1].left = true end
    end
    end_round(lane, touched)
  end

  -- Takes up to `wanted` entries out of the ready set, as `pop` does, and returns their stream ids; nil if tenants do not
  -- share the lane.
  function t.pop(lane, wanted, worker)
    local passed, ids, rounds = 0, {}, 0
    local function stays(id)
      local waits = some_interrupted and passed < 16 and waits_for_another(lane, id, worker)
        or some_sessions and passed < 64 and homing() and homes().elsewhere(lane, id)
      passed = passed + (waits and 1 or 0)
      return waits
    end
    -- One more, because who comes first may have nothing in the index; and some if entries may be passed over.
    local function lowest() return t.lowest(lane, wanted - #ids + (some_interrupted and 16 or 1)) end
    local rows = lowest()
    if not rows[1] and not t.shares(lane) then return nil end
    ids[1] = rows[1] and nearly_late(lane, stays)
    if ids[1] then rows = lowest() end
    while #ids < wanted and rounds < 4 and rows[1] do
      round(lane, rows, wanted, ids, stays)
      rounds = rounds + 1
      if #ids < wanted then rows = lowest() end
    end
    -- A worker of an earlier release may have staged entries that are in no index; with nothing else left, they go by rank.
    -- @guard tenants: what stands in no index is taken too
    if #ids < wanted and not t.shares(lane, true) then
      local some = call('ZPOPMIN', ready_key(lane), wanted - #ids)
      for i = 1, #some, 2 do ids[#ids + 1] = decode_id(some[i]) end
    end
    return ids
  end
end
