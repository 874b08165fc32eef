-- What a worker takes of a lane in which something has a label. tests/order/rules.py has the rules in plain words. A row is an
-- entry that waits: member (its encoded id), rank, kind (as in `counts`, 'r' without a label), full (its member in the set that
-- was read), name (of its tenant), x (that tenant, if it is charged), size (bytes and limit, as text), bytes, limit, home, cost.
local D, W, NEAR, LONG, LATE, URGENT, AHEAD = 1000, 1000, 3000, 10000, 3000, 10000, 6
local TURN_AFTER, TURN_LATER, DEEP, SCAN = 3000, 10000, 16, 64
local NONE, TICKETS = {}, KEYS[SHARED - 4]
local o, t, mine, worker = order(), nil, nil, nil
local P, soonest = nil, nil   -- P: this round; soonest: ms until more may be taken
local held_seen = {}   -- by lane: number of rows of :held that this call passed, because none may run, and work that it took

local function wait_for(ms) if not soonest or ms < soonest then soonest = ms end end
local function before(a, b) return a.rank < b.rank or a.rank == b.rank and a.member < b.member end

local function know_tenant(name, tokens, queued)
  local x = {name = name, record = t.record(name), tokens = tokens or 0, in_turn = queued}
  P.tenants[name] = x
  if queued then P.queue[#P.queue + 1] = x end
  return x
end

local function tenant_of(name) return P.tenants[name] or know_tenant(name, t.turn(P.lane, name)) end

-- Fetches the next tenants in turn.
local function fetch_turns(most)
  if P.all then return end
  local rows, names = t.lowest(P.lane, most, P.fetched), {nil}
  if P.fetched == 0 then P.low = tonumber(rows[2] or 0) end
  P.all, P.fetched = #rows < 2 * most, P.fetched + #rows / 2
  for i = 1, #rows, 2 do names[(i + 1) / 2] = rows[i] end
  t.fetch_records(names)
  for i = 1, #names do
    local name, tokens = names[i], tonumber(rows[2 * i])
    if not P.tenants[name] then know_tenant(name, tokens, true) end
    P.last, P.last_name = tokens, name
  end
end

-- The least tokens of those in turn, but no less than one had that was picked in its turn.
local function level()
  while true do
    local low = math.huge
    for i = 1, #P.queue do
      local x = P.queue[i]
      if x.in_turn and x.tokens < low then low = x.tokens end
    end
    if P.all or low <= P.last then return math.max(P.reached, low < math.huge and low or 0) end
    fetch_turns(SCAN)
  end
end

local function touch(x)
  if not x.touched then x.touched, P.touched[#P.touched + 1] = true, x end
end

local function cost_of(row)
  if row.cost == 0 then
    if row.name == '' then
      row.cost, row.prompt = t.usual(), 0
    else
      row.cost, row.prompt = t.cost(row.x.record, row.bytes, row.limit)
    end
  end
  return row.cost
end

local function may_run(row) return not row.x or row.x.record.running < row.x.record.most end

local function few_ahead(row)
  if not may_run(row) then return false end
  local room, x = AHEAD * cost_of(row) / row.x.record.weight, row.x
  -- The level is no less than it was at the beginning: nearly always that is enough.
  return x.tokens - math.max(P.reached, P.low) <= room or x.tokens - level() <= room
end

-- Takes a row, and charges its tenant.
local function out(row)
  local x = row.x
  P.picked[#P.picked + 1], P.gone[row.member] = row, true
  if not x then return end
  local record = x.record
  row.weight = record.weight
  x.tokens = x.tokens + cost_of(row) / record.weight
  if record.most < math.huge then
    row.counted, t.change(x.name).running = true, record.running + 1
    if record.running >= record.most then x.in_turn = false end   -- it is no part of the level
  end
  touch(x)
end

-- A row of a set: its member there and its rank, as text. Nothing for a member that was written by hand.
local function row_of(kind, full, rank, name, home)
  local row = {member = full, rank = tonumber(rank), kind = kind, full = full, name = name or '', home = home, cost = 0, prompt = 0, bytes = 0,
    counted = false, popped = false}
  if kind == 't' or kind == 'b' or kind == 'held' then
    local member, size, bytes, limit, rest = string.match(full, '^(%S+)( (%d+) (%d*)) ?(.*)$')
    row.member, row.size, row.bytes, row.limit = member, size, tonumber(bytes), tonumber(limit)
    if kind == 'held' then row.name = rest elseif kind == 'b' and not name then row.name = rest elseif kind == 'b' then row.home = tonumber(rest) end
  end
  row.id = row.member and decode_id(row.member)
  if not row.id or kind == 'b' and not row.home then return nil end
  if row.name ~= '' or P.shared then row.x = t and tenant_of(row.name) or nil end
  return row
end

-- ms until an entry has waited for so long, 0 if it has.
local function young(row, ms)
  local at = kept_enqueued_ms(P.lane, row.id) or id_ms(row.id)
  -- @guard order: a clock that is set back holds nothing up
  if at > now_ms() then return 0 end
  return math.max(0, at + ms - now_ms())
end

local function is_foreign(row) return row.home and row.home ~= mine end

-- The rows that were picked leave their sets, if they have not yet.
local function take_out()
  local by_key, number, homes_of = {}, {t = 0, b = 0, h = 0, held = 0}, nil
  local function gone(key, member)
    local some = by_key[key]
    if not some then some = {nil}; by_key[key] = some end
    some[#some + 1] = member
  end
  for i = P.out + 1, #P.picked do
    local row = P.picked[i]
    local kind, lane = row.kind, P.lane
    if kind ~= 'r' then number[kind] = number[kind] + 1 end
    if row.popped then   -- it has left its set
    elseif kind == 'r' then gone(ready_key(lane), row.member)
    elseif kind == 't' then gone(o.key(lane, ':t:', row.name), row.full)
    elseif kind == 'held' then gone(o.key(lane, ':held'), row.full)
    elseif kind == 'h' then
      homes_of = homes_of or {}
      gone(o.key(lane, ':h:', row.home), row.member)
      homes_of[row.home] = true
    else
      gone(o.key(lane, ':th:', row.name), row.member .. row.size .. ' ' .. row.home)
      gone(o.key(lane, ':ht:', row.home), row.member .. row.size .. ' ' .. row.name)
    end
    -- @guard order: its ticket goes
    if row.home then gone(TICKETS, entry_field(lane, row.id)) end
  end
  for key, members in pairs(by_key) do
    for i = 1, #members, 400 do call(key == TICKETS and 'HDEL' or 'ZREM', key, unpack(members, i, math.min(i + 399, #members))) end
  end
  for kind, some in pairs(number) do if some > 0 then o.count(P.lane, kind, -some) end end
  for home in pairs(homes_of or NONE) do o.first_changed(P.lane, home) end
  P.out = #P.picked
end

-- Takes out another home's first at once: the next one is that home's first now. What was picked before stays: parts of its sets
-- are read by place.
local function out_at_once(row)
  out(row)
  call('ZREM', o.key(P.lane, ':h:', row.home), row.member)
  row.popped = true
  o.first_changed(P.lane, row.home)
end

-- Rows of a set are read in growing parts, and made as far as they are needed. Returns the first from a place on that is not
-- taken, and its place.
local function next_in(list, at, most)
  repeat
    while at > #list and #list < most do
      if list.place > #list.flat then
        if list.all then break end
        local size = math.min(list.size, most - #list)
        list.flat, list.place = call('ZRANGE', list.key, list.read, list.read + size - 1, 'WITHSCORES'), 1
        list.all, list.read, list.size = #list.flat < 2 * size, list.read + size, math.min(64, size * 4)
      else
        local full, rank = list.flat[list.place], list.flat[list.place + 1]
        list.place = list.place + 2
        local row = row_of(list.kind, full, rank, list.name, list.home)
        if row then list[#list + 1] = row else list.read = list.read - call('ZREM', list.key, full) end
      end
    end
    local row = list[at]
    if not row or not P.gone[row.member] then return row, at end
    at = at + 1
  until false
end

local function page_of(kind, key, name, home, size)
  return {kind = kind, key = key, name = name, home = home, size = size or 1, read = 0, flat = NONE, place = 1, all = false, at = 1}
end

-- Lists, by rank, of what waits for this worker, and of up to `most` of what it has interrupted.
local function own_lists(most)
  local c, size, lists = o.counts[P.lane], P.n - #P.picked, {nil}
  if mine and c.b > 0 then lists[1] = page_of('b', o.key(P.lane, ':ht:', mine), nil, mine, size) end
  if mine and c.h > 0 then lists[#lists + 1] = page_of('h', o.key(P.lane, ':h:', mine), '', mine, size) end
  table.sort(P.held_mine, before)
  if P.held_mine[1] then lists[#lists + 1] = {flat = NONE, place = 1, all = true, at = 1, unpack(P.held_mine, 1, most)} end
  return lists
end

-- Takes the first row by rank off one of these lists; nil if they have none.
local function first_of(lists)
  local row, from
  for i = 1, #lists do
    local each
    each, lists[i].at = next_in(lists[i], lists[i].at, math.huge)
    if each and (not row or before(each, row)) then row, from = each, lists[i] end
  end
  if row then from.at = from.at + 1 end
  return row
end

-- Of other homes, the first request of each without a tenant: up to DEEP, by rank, of those before `rank`.
local function foreign_firsts(rank)
  local rows, key, flat = {nil}, o.key(P.lane, ':firsts'), NONE
  if o.counts[P.lane].h > 0 then
    flat = call('ZRANGEBYSCORE', key, '-inf', string.format('(%.17g', rank), 'WITHSCORES', 'LIMIT', 0, DEEP + 1)
  end
  for i = 1, #flat, 2 do
    local home = tonumber(flat[i])
    if home ~= mine and #rows < DEEP then
      local member = call('ZRANGE', o.key(P.lane, ':h:', home), 0, 0)[1]
      if member and not P.gone[member] then rows[#rows + 1] = row_of('h', member, flat[i + 1], '', home) end
    end
  end
  return rows
end

-- None of these rows may be taken now: notes when the first may.
local function come_again(rows)
  for i = 1, #rows do
    local ms = young(rows[i], D)
    if ms > 0 then wait_for(ms) end
  end
end

-- Looks at what was interrupted. If the time of an entry has come, it waits for nobody; else for this worker or another.
local function look_at_held()
  local more, key, seen = o.counts[P.lane].held > 0, o.key(P.lane, ':held'), held_seen[P.lane] or {passed = 0, looked = 0}
  P.held, P.held_mine, held_seen[P.lane] = {nil}, {nil}, seen
  repeat
    local flat = more and call('ZRANGE', key, seen.passed, seen.passed + SCAN - 1, 'WITHSCORES') or NONE
    local some = {nil}
    for i = 1, #flat, 2 do
      local full, rank = flat[i], flat[i + 1]
      local member, bytes, limit, name = string.match(full, '^(%S+) (%d+) (%d*) (.*)$')
      local id = member and decode_id(member)
      local till, home = string.match(id and interruptions(P.lane, id) or '', ' (%d+) (%S+)$')
      if not id then call('ZREM', key, full) end   -- written by hand
      -- @guard order: what was interrupted waits for its worker for a while
      if id and (not till or tonumber(till) <= now_ms()) then
        call('ZREM', key, full)
        o.count(P.lane, 'held', -1)
        if not o.stand(P.lane, id, rank, name, tonumber(bytes), limit, true) then call('ZADD', ready_key(P.lane), rank, member) end
      elseif id then
        some[#some + 1] = {full, rank, home, name}
      end
    end
    o.write()
    t = sharing()
    P.shared = t and o.shares(P.lane)
    seen.looked = seen.looked + #flat - #some   -- what changes its place counts twice
    local runs = false
    for i = 1, #some do
      local x = t and (some[i][4] ~= '' or P.shared) and tenant_of(some[i][4])
      runs = runs or not x or x.record.running < x.record.most
    end
    more = false
    -- @guard order: a tenant at its limit hides nobody's interrupted request
    if #flat == 2 * SCAN and not runs and seen.looked < 8 * SCAN then more, seen.passed = true, seen.passed + #some end
    for i = 1, more and 0 or #some do
      local row = row_of('held', some[i][1], some[i][2])
      P.held[i] = row
      if some[i][3] == worker then P.held_mine[#P.held_mine + 1] = row end
    end
  until not more
end

-- Without tenants: what another home is late with; what waits for this worker or nobody, by rank; then what waits for others.
local function by_rank()
  local n, lists = P.n, own_lists(SCAN)
  lists[#lists + 1] = page_of('r', ready_key(P.lane), nil, nil, n)
  local function first()
    local row
    repeat row = first_of(lists) until not row or may_run(row)
    return row
  end
  local row = first()
  if row then
    for _, late in ipairs(foreign_firsts(row.rank - W)) do
      if young(late, D) == 0 then
        -- @guard affinity: what another home is late with goes first if it is near, or has waited for long
        if late.rank <= now_ms() + NEAR or young(late, LONG) == 0 then out_at_once(late) end
        break
      end
    end
  end
  while row and #P.picked < n do
    out(row)
    row = #P.picked < n and first()
  end
  while #P.picked < n do
    local rows, late = foreign_firsts(math.huge), nil
    for i = 1, #rows do
      -- @guard affinity: what waits for another is left to it for a second
      if young(rows[i], D) == 0 then late = rows[i]; break end
    end
    if not late then return come_again(rows) end
    out_at_once(late)
  end
end

-- Returns rows of a tenant whose deadlines pass soon, by rank: the first that waits for nobody, and up to DEEP that have a home;
-- and the rank of the first whose deadline passes later, or math.huge. `since`: none passes sooner.
local function late_rows(name, since)
  local most, beyond, found = now_ms() + LATE, math.huge, {nil}
  local from = '(' .. now_ms()
  -- @guard order: a look for deadlines goes on where the last stopped
  if since > now_ms() then from = string.format('%.17g', since) end
  local function look(key, kind, deep)
    local here, at, more, flat = 0, 0, true, nil
    while more do
      flat = call('ZRANGEBYSCORE', key, from, 'inf', 'WITHSCORES', 'LIMIT', at, SCAN)
      at, P.looked = at + SCAN, P.looked + #flat / 2
      for i = 1, #flat, 2 do
        local rank = tonumber(flat[i + 1])
        if rank > most then
          beyond = math.min(beyond, rank)
          return
        end
        local member, home = string.match(flat[i], '^%S+'), nil
        if kind == 'h' then member, home = call('ZRANGE', o.key(P.lane, ':h:', flat[i]), 0, 0)[1], tonumber(flat[i]) end
        local id = member and decode_id(member)
        -- A rank from the default deadline is no deadline.
        if id and enqueued_ms(P.lane, id) + cfg.patience_ms ~= rank then
          here = here + 1
          if here <= deep then found[#found + 1] = row_of(kind, kind == 'h' and member or flat[i], rank, name, home) end
        end
      end
      more = false
      -- @guard order: what has no deadline of its own hides no deadline
      if here == 0 and #flat == 2 * SCAN and P.looked < 16 * SCAN then more = true end
    end
    if #flat == 2 * SCAN then beyond = math.min(beyond, tonumber(flat[#flat])) end
  end
  if name == '' then
    look(ready_key(P.lane), 'r', 1)
    if o.counts[P.lane].h > 0 then look(o.key(P.lane, ':firsts'), 'h', DEEP) end
  else
    look(o.key(P.lane, ':t:', name), 't', 1)
    if o.counts[P.lane].b > 0 then look(o.key(P.lane, ':th:', name), 'b', DEEP) end
  end
  table.sort(found, before)
  return found, beyond
end

-- Takes what is nearly late: at most one request of each of the DEEP tenants whose first deadlines come next.
local function nearly_late()
  local key, known, rows, some = o.key(P.lane, ':late'), {}, nil, {nil}
  if call('ZCOUNT', key, '-inf', now_ms() + LATE) == 0 then return end
  for _ = 1, 8 do
    local sure = true
    rows = call('ZRANGEBYSCORE', key, '-inf', now_ms() + LATE, 'WITHSCORES', 'LIMIT', 0, DEEP)
    for i = 1, #rows, 2 do
      local name = rows[i]
      if not known[name] then
        local found, beyond = late_rows(name, tonumber(rows[i + 1]))
        local first = math.min(found[1] and found[1].rank or beyond, beyond)
        known[name] = found
        -- @guard order: deadlines that have passed are left to the housekeeping
        if tonumber(rows[i + 1]) <= now_ms() and name ~= '' then call('ZADD', o.key(P.lane, ':past'), 'LT', rows[i + 1], name) end
        if first == math.huge then call('ZREM', key, name) else call('ZADD', key, first, name) end
        sure = sure and first == tonumber(rows[i + 1])
      end
    end
    if sure then break end
  end
  for i = 1, #rows, 2 do
    for _, row in ipairs(known[rows[i]] or NONE) do
      if not is_foreign(row) or young(row, D) == 0 then some[#some + 1] = row; break end
    end
  end
  table.sort(some, before)
  for _, row in ipairs(some) do
    -- @guard tenants: who is nearly late goes before few of its tenant
    if #P.picked < P.n and few_ahead(row) then
      if row.kind == 'h' and is_foreign(row) then out_at_once(row) else out(row) end
    end
  end
end

-- The first row without a tenant that waits for this worker and is not taken; nil for none.
local function first_mine()
  if not mine or o.counts[P.lane].h == 0 then return nil end
  P.mine_free = P.mine_free or page_of('h', o.key(P.lane, ':h:', mine), '', mine)
  return (next_in(P.mine_free, 1, math.huge))
end

-- The rows of a tenant that wait for homes.
local function homed_of(x)
  x.homed = x.homed or page_of('b', o.key(P.lane, ':th:', x.name), x.name)
  return x.homed
end

-- The first row of a tenant that waits for nobody and is not taken; nil for none.
local function first_free(x)
  x.free = x.free or (x.name == '' and page_of('r', ready_key(P.lane)) or page_of('t', o.key(P.lane, ':t:', x.name), x.name))
  local row
  row, x.free.at = next_in(x.free, x.free.at, math.huge)
  return row
end

-- The rank of the first row of a tenant that is not taken.
local function first_rank(x)
  local low = math.huge
  local function look(row) low = math.min(low, row and row.rank or math.huge) end
  look(first_free(x))
  if x.name == '' then
    look(first_mine())
    look(foreign_firsts(low)[1])
  elseif o.counts[P.lane].b > 0 then
    look((next_in(homed_of(x), 1, math.huge)))
  end
  return low
end

-- What waits for this worker goes before what else waits of its tenant, unless that has to run soon. What is not needed is
-- not read.
local function own()
  local most, lists = P.n - #P.picked + DEEP, own_lists(DEEP)
  while #P.own < most and #P.picked < P.n do
    local row = first_of(lists)
    if not row then break end
    local x = row.x
    P.own[#P.own + 1] = row
    if few_ahead(row) then
      local first = x.first_rank or first_rank(x)
      x.first_rank = first
      -- @guard affinity: its own goes first only if its tenant has nothing that has to run soon
      if not (first <= now_ms() + URGENT and row.rank > first + W) then
        out(row)
        x.first_rank = nil
      end
    end
  end
end

-- Returns the first row of a tenant that this worker may take, nil for none; and true if anything of the tenant waits.
local function next_of(x, age, most)
  local c, row, best, eff = o.counts[P.lane], first_free(x), nil, math.huge
  local function try(some, later)
    local rank = some.rank + (later or 0)
    if not best or rank < eff or rank == eff and some.member < best.member then best, eff = some, rank end
  end
  local any = row ~= nil
  if row then try(row) end
  if x.name == '' and mine and c.h > 0 then
    row = first_mine()
    if row then any = true; try(row) end
  else
    for i = 1, #P.own do
      row = P.own[i]
      if row.x == x and row.kind ~= 'held' and not P.gone[row.member] then any = true; try(row); break end
    end
  end
  local others, late = {nil}, nil
  if x.name == '' then
    if c.h > 0 and not x.others then x.others = foreign_firsts(math.huge) end
    for i = 1, #(x.others or NONE) do
      if not P.gone[x.others[i].member] then others[#others + 1] = x.others[i] end
    end
  elseif c.b > 0 then
    local at = 1
    row, at = next_in(homed_of(x), at, most)
    while row and at <= most and row.rank <= eff do
      if row.home == mine then try(row) else others[#others + 1] = row end
      row, at = next_in(x.homed, at + 1, most)
    end
    any = any or row ~= nil
  end
  any = any or others[1] ~= nil
  for i = 1, #others do
    -- @guard affinity: in its turn another home's is taken after a while
    if not late and young(others[i], age) == 0 then late = others[i] end
  end
  if late then try(late, TURN_LATER) end
  if not best then come_again(others) end
  return best, any
end

-- Tenants take turns, in order of their tokens. First without what waits for others and is young; with room left, all D old.
local function turns()
  local most, alone = P.n - #P.picked + DEEP, o.counts[P.lane].b + o.counts[P.lane].h == 0
  local function less(a, b) return a.tokens < b.tokens or a.tokens == b.tokens and a.name < b.name end
  local function queue_up(line, x)
    local place = #line + 1
    while place > 1 and less(x, line[place - 1]) do line[place], place = line[place - 1], place - 1 end
    line[place] = x
  end
  if alone and P.out < #P.picked then take_out() end   -- what is popped below must not be among them
  for _, age in ipairs({TURN_AFTER, D}) do
    local line, at = {nil}, 1
    for i = 1, #P.queue do if P.queue[i].in_turn then line[#line + 1] = P.queue[i] end end
    if line[2] then table.sort(line, less) end
    while #P.picked < P.n and at <= SCAN do
      local x = line[at]
      while not P.all and not (x and (x.tokens < P.last or x.tokens == P.last and x.name <= P.last_name)) do
        local from = #P.queue + 1
        fetch_turns(SCAN)
        for i = from, #P.queue do queue_up(line, P.queue[i]) end
        x = line[at]
      end
      if not x then break end
      local row, any = nil, false
      if x.record.running >= x.record.most then   -- by picks of another lane
        x.in_turn = false
        touch(x)
      elseif alone then
        x.key = x.key or (x.name == '' and ready_key(P.lane) or o.key(P.lane, ':t:', x.name))
        local some = call('ZPOPMIN', x.key)
        if some[1] then
          row = row_of(x.name == '' and 'r' or 't', some[1], some[2], x.name)
          if row then row.popped = true end
        end
      else
        row, any = next_of(x, age, most)
      end
      if row then
        P.reached = math.max(P.reached, line[1].tokens)
        if row.kind == 'h' and is_foreign(row) then
          out_at_once(row)
          x.others = nil
        else
          out(row)
        end
      elseif not any then
        x.in_turn = false
        touch(x)
      end
      if row or not any then
        table.remove(line, at)
        P.vain = P.vain + (row and 0 or 1)
        if P.vain > 16 * SCAN then return wait_for(D) end
        if x.in_turn then queue_up(line, x) end
      else
        at = at + 1   -- it keeps its turn, and others go
      end
    end
    if at > SCAN then wait_for(D) end
    if at == 1 then return end   -- nobody was passed over
  end
end

-- Writes the turns of tenants that were looked at: one is in turn if something of it waits, and it may run one more.
local function finish_turns()
  local n, shared, keys, scores = #P.touched, t and o.shares(P.lane), {nil}, {nil, nil}
  if n == 0 then return end
  o.write()
  -- One command tells if all still wait; nearly always they do.
  for i = 1, n do
    local name = P.touched[i].name
    keys[i] = name == '' and ready_key(P.lane) or o.key(P.lane, ':t:', name)
  end
  local sure = shared and call('EXISTS', unpack(keys)) == n
  for i = 1, n do
    local x = P.touched[i]
    local waits = sure or shared and o.waits(P.lane, x.name)
    scores[2 * i - 1], scores[2 * i] = waits and x.record.running < x.record.most and x.tokens or -1 - x.tokens, x.name
    if not waits then call('ZREM', o.key(P.lane, ':late'), x.name) end
  end
  t.store_turns(P.lane, scores)
  if P.shared and not shared then o.end_sharing(P.lane) end
end

local self = {}

-- Takes up to n entries of a lane. Returns their stream ids.
function self.pop(lane, n, name)
  o.write()
  t, worker, mine = sharing(), name, homing() and homes().mine or nil
  P = {lane = lane, n = n, picked = {nil}, out = 0, gone = {}, tenants = {}, queue = {nil}, touched = {nil}, own = {nil}, fetched = 0, last = 0,
    all = false, low = 0, reached = 0, vain = 0, looked = 0, shared = false}
  look_at_held()
  if P.shared then
    P.reached = t.number(t.level_field(lane))
    fetch_turns(n)
    nearly_late()
    if mine or P.held_mine[1] then own() end
    if #P.picked < n then turns() end
    t.pass_level(lane, P.reached)
  else
    by_rank()
  end
  for _, row in ipairs(P.held) do
    -- @guard order: what was interrupted goes where nothing else is
    if #P.picked < n and not P.gone[row.member] and may_run(row) then out(row) end
  end
  if P.out < #P.picked then take_out() end
  local ids = {nil}
  for i, row in ipairs(P.picked) do ids[i] = row.id end
  if not ids[1] then finish_turns() end
  return ids
end

-- What `pop` returned was claimed. `runs`: by place, the fields of those that run; the others were ended, or had vanished.
function self.taken(lane, ids, runs)
  local kept, fields, unsettled = nil, nil, nil
  for i, row in ipairs(P.picked) do
    local x = row.x
    if x and not kept then kept, fields, unsettled = t.kept_of(lane, ids) end
    -- @guard tenants: a charge that nobody settled is given back
    if x then x.tokens = math.max(0, x.tokens - unsettled[i]) end
    if x and runs[i] then
      if row.name == '' then
        local bytes, limit = body_size(runs[i])
        local cost, prompt = t.cost(x.record, bytes, tonumber(limit))
        -- @guard tenants: what has no tenant is charged by its body once that is read
        x.tokens = math.max(0, x.tokens + (cost - row.cost) / row.weight)
        t.put('usual', string.format('%.17g', t.usual() + (cost - t.usual()) / 8))
        row.bytes, row.limit, row.cost, row.prompt = bytes, tonumber(limit), cost, prompt
      end
      -- @guard tenants: a pick is charged
      t.charge(fields[i], row, row.weight, kept[i])
    elseif x then
      -- @guard tenants: what did not run is not charged
      x.tokens = math.max(0, x.tokens - row.cost / row.weight)
      if row.counted then t.change(x.name).running = math.max(0, x.record.running - 1) end
    end
  end
  finish_turns()
end

-- ms for which the entry at this place was left to another worker, as text; '' for one that waited for no other.
function self.passed(lane, place)
  local row = P.picked[place]
  return is_foreign(row) and string.format('%.0f', now_ms() - enqueued_ms(lane, row.id)) or ''
end

-- Number of the home for which the entry at this place waited; nil for none.
function self.home_of(place) return P.picked[place].home end

function self.soonest() return soonest end

return self
