-- The sets of what waits with a label, for those who compare and mend: which there are, how many stand in them, and if an entry
-- stands in the right ones. `mend` and `note` are the script's.
-- @guard reconcile: who has a limit is known
look_at_queue()
local o, t, self = order(), tenants(), {}
if not o then return false end
local LOADS, COUNTED = KEYS[SHARED], {[':t:'] = 't', [':th:'] = 'b', [':ht:'] = 'twins', [':h:'] = 'h', [':held'] = 'held'}

-- Returns the names that a lane's sets may have, by the beginning of their keys behind the ready set's key: the known tenants and
-- homes, those that wait first, and what ARGV names from place `first` on. Of an unknown name there may be a set of entries that
-- an examination of the lane finds.
local function known_names(lane, first)
  local of_tenants, of_homes, one, seen = {nil}, {nil}, {''}, {}
  seen[of_tenants], seen[of_homes] = {}, {}
  local function add(names, name)
    if not seen[names][name] then seen[names][name], names[#names + 1] = true, name end
  end
  for _, name in ipairs(call_if_typed('ZRANGE', KEYS[2 * LANE_COUNT + lane], 0, -1) or {}) do add(of_tenants, name) end
  for _, field in ipairs(call_if_typed('HKEYS', KEYS[SHARED - 3]) or {}) do
    if string.sub(field, 1, 2) == 't|' then add(of_tenants, string.sub(field, 3)) end
  end
  for _, key in ipairs({o.key(lane, ':firsts'), LOADS}) do
    for _, home in ipairs(call_if_typed('ZRANGE', key, 0, -1) or {}) do add(of_homes, home) end
  end
  local numbered = homes() and call('HLEN', KEYS[SHARED - 1]) > 0   -- in a large fleet, to ask for each takes long
  for _, worker in ipairs(numbered and call('HKEYS', WORKERS) or {}) do add(of_homes, tostring(homes().number(worker) or 0)) end
  for i = first, #ARGV do
    local kind, name = string.match(ARGV[i], '^:([th]+):(.*)$')
    if kind then add(string.byte(kind) == 116 and of_tenants or of_homes, name) end
  end
  return {[':t:'] = of_tenants, [':th:'] = of_tenants, [':h:'] = of_homes, [':ht:'] = of_homes, [':held'] = one, [':firsts'] = one,
    [':late'] = one, [':past'] = one}
end

-- Deletes all sets of a lane: what stood in them waits no more.
function self.delete(lane, first)
  local keys = {ready_key(lane)}
  for kind, names in pairs(known_names(lane, first)) do
    for _, name in ipairs(names) do keys[#keys + 1] = o.key(lane, kind, name) end
  end
  for i = 1, #keys, 400 do call('UNLINK', unpack(keys, i, math.min(i + 399, #keys))) end
  for kind in pairs(o.counts[lane]) do o.count(lane, kind, -math.huge) end
end

-- Counts what stands in the sets of a lane, by kind as o.counts has it; `twins`, which are as many as `b`; and `homes`, for which
-- something stands in :h:. A set of another type is deleted.
function self.count(lane, first)
  local number = {t = 0, b = 0, twins = 0, h = 0, held = 0, homes = 0}
  for kind, names in pairs(known_names(lane, first)) do
    local keys, sum = {nil}, COUNTED[kind]
    for i, name in ipairs(names) do keys[i] = o.key(lane, kind, name) end
    for from = 1, #keys, 64 do
      local to = math.min(from + 63, #keys)
      -- Most names have no set: some are looked for at once.
      for i = call('EXISTS', unpack(keys, from, to)) > 0 and from or to + 1, to do
        local size = call_if_typed('ZCARD', keys[i])
        if sum then number[sum] = number[sum] + (size or 0) end
        if sum == 'h' and size and size > 0 then number.homes = number.homes + 1 end
        if not size then note('wrong_type', keys[i]) end
        -- @guard compare: a set of another type goes
        if mend and not size then call('UNLINK', keys[i]) end
      end
    end
  end
  return number
end

-- Mends the number of entries in the sets of a lane, and removes homes from :firsts for which nothing waits. Returns true if
-- something was wrong.
function self.keep(lane, number)
  local key, off = o.key(lane, ':firsts'), false
  for _, home in ipairs((call_if_typed('ZCARD', key) or 0) > number.homes and call('ZRANGE', key, 0, -1) or {}) do
    off = true
    -- @guard compare: a home for which nothing waits has no first
    if mend then o.first_changed(lane, home) end
  end
  for kind, some in pairs(o.counts[lane]) do
    off = off or number[kind] ~= some
    -- @guard compare: what waits with a label is counted
    if mend and number[kind] ~= some then o.count(lane, kind, number[kind] - some) end
  end
  return off
end

-- It is known that there are tenants, and homes; and who waits for a home has a ticket.
function self.begin()
  local homed = 0
  for lane = 1, LANE_COUNT do homed = homed + o.counts[lane].b + o.counts[lane].h end
  -- @guard compare: who waits for a home has a ticket
  if call('HLEN', KEYS[SHARED - 4]) ~= homed then note('odd', 'tickets') end
  -- @guard compare: it is known that tenants are there
  if mend and t and call('HLEN', KEYS[SHARED - 3]) > 0 then t.begin() end
  -- @guard compare: it is known that homes are there
  if mend and not some_sessions and homes() and call('HLEN', KEYS[SHARED - 1]) > 0 then homes().begin() end
end

-- A deadline to come is no earlier than its tenant's in :late.
local function in_late(lane, id, rank, kind, name, home, deadline)
  rank = tonumber(rank)
  if not o.shares(lane) or not deadline or rank <= now_ms() then return true end
  if kind == 'h' and tonumber(call('ZSCORE', o.key(lane, ':firsts'), home) or nil) ~= rank then return true end
  return (tonumber(call('ZSCORE', o.key(lane, ':late'), name) or nil) or math.huge) <= rank
end

-- A tenant that waits is in turn if it may run one more; so it is, too, soon after its limit was raised.
local function check_turn(lane, name)
  local _, in_turn = t.turn(lane, name)
  if in_turn or t.record(name).running >= t.record(name).most then return end
  note('turn_gone', LANE_NAMES[lane] .. ':' .. name)
  -- @guard reconcile: who waits is in turn
  if mend then t.enter(lane, name) end
end

-- Returns the rank of an entry that waits, as text; true if it is found in the sets of its labels; and its home.
function self.place(lane, id, fields)
  local rank, kind, name, home, places = o.find(lane, id, fields)
  if not rank or kind == 'held' then return rank, true, home end
  local _, deadline, _, raw = skim_entry(lane, id, fields)
  local right = in_late(lane, id, rank, kind, name, home, deadline)
  -- @guard reconcile: what has a tenant stands in its sets
  if name == '' then right = right and not (raw and t) else right = right and raw and (name == raw or name == 'other') end
  -- @guard reconcile: what has a tenant and a home stands twice
  for i = 1, #places, 2 do right = right and call('ZSCORE', places[i], places[i + 1]) end
  -- @guard reconcile: what waits for a home waits for one that there is
  if home then right = right and call('ZSCORE', LOADS, home) end
  local first = kind == 'h' and call('ZRANGE', places[1], 0, 0, 'WITHSCORES')[2]
  -- @guard reconcile: the first of a home is known
  if first then right = right and tonumber(call('ZSCORE', o.key(lane, ':firsts'), home) or nil) == tonumber(first) end
  if t and (name ~= '' or o.shares(lane)) then check_turn(lane, name) end
  return rank, right and true or false, home
end

return self
