-- The order of what waits. A label is a tenant or a home. An entry without one stands in ready:<lane>, by rank. An entry with a
-- label stands, by rank, in sets whose keys begin with ready:<lane> and go on with
--   :t:<tenant> for entries that wait for nobody; members '<encoded id> <bytes of the body> <asked limit>'.
--   :th:<tenant> and :ht:<home> for entries that wait for a home, each in both; members as above, and ' <home>' or ' <tenant>'.
--   :h:<home> for entries with a home and no tenant; members as in the ready set.
--   :held for interrupted entries, which wait for their worker until the time that `interruptions` tells; members as in :ht:.
-- :firsts has homes by the rank of the first of their :h:. While tenants share the lane, :late has each by a rank that is no
-- later than its first deadline; of a :h: only the first counts. :past has tenants of which a pull has found a passed deadline,
-- until the housekeeping has ended those requests. `tickets` has '<home> <bytes> <limit> <tenant>' of each request that waits for
-- a home. LANES has the field `labelled`: of each lane '<in :t:> <with tenant and home> <in :h:> <held>;'. While nothing has a
-- label, this field is missing, and a script reads nothing else of all this.
local TICKETS, OTHER = KEYS[SHARED - 4], 'other'
-- @guard order: a key of another type is left alone
if not call_if_typed('HLEN', TICKETS) then return false end
local o, counts, changed = {}, {}, false
local adds, bounds, tickets = {}, {}, {nil}   -- by key scores and members; by key members and least scores; fields and values
if labelled == nil then labelled = call_if_typed('HGET', LANES, 'labelled') or false end
for t, b, h, held in string.gmatch(labelled or '', '(%d+) (%d+) (%d+) (%d+);') do
  counts[#counts + 1] = {t = t + 0, b = b + 0, h = h + 0, held = held + 0}
end
for lane = #counts + 1, LANE_COUNT do counts[lane] = {t = 0, b = 0, h = 0, held = 0} end
o.counts = counts

-- Key of a lane's set: `kind` as in the list above, with the colons.
function o.key(lane, kind, name) return ready_key(lane) .. kind .. (name or '') end

-- Number of entries of a lane that wait with a label.
function o.length(lane)
  local c = counts[lane]
  return c.t + c.b + c.h + c.held
end

-- True if tenants share the lane.
function o.shares(lane) return counts[lane].t + counts[lane].b > 0 end

function o.count(lane, kind, more)
  counts[lane][kind], changed = math.max(0, counts[lane][kind] + more), true
end

local function add(key, rank, member)
  local rows = adds[key]
  if not rows then rows = {nil, nil}; adds[key] = rows end
  local n = #rows
  rows[n + 1], rows[n + 2] = rank, member
end

-- Lowers the rank of `name` in :firsts or :late to this one; adds a missing one.
function o.bound(lane, kind, rank, name)
  local key = ready_key(lane) .. kind
  local some = bounds[key]
  if not some then some = {}; bounds[key] = some end
  rank = tonumber(rank)
  if not some[name] or rank < some[name] then some[name] = rank end
end

-- Writes what `put` and `bound` have collected. Call it before a command reads the sets.
function o.write()
  if next(adds) then
    for key, rows in pairs(adds) do
      for i = 1, #rows, 400 do call('ZADD', key, unpack(rows, i, math.min(i + 399, #rows))) end
    end
    adds = {}
  end
  for i = 1, #tickets, 400 do call('HSET', TICKETS, unpack(tickets, i, math.min(i + 399, #tickets))) end
  tickets = {nil}
  if next(bounds) then
    for key, some in pairs(bounds) do
      local words, n = {nil, nil}, 0
      for name, rank in pairs(some) do words[n + 1], words[n + 2], n = rank, name, n + 2 end
      for i = 1, n, 400 do call('ZADD', key, 'LT', unpack(words, i, math.min(i + 399, n))) end
    end
    bounds = {}
  end
end

-- The :h: of a home has changed: so does its rank in :firsts.
function o.first_changed(lane, home)
  local row = call('ZRANGE', o.key(lane, ':h:', home), 0, 0, 'WITHSCORES')
  if not row[1] then return call('ZREM', o.key(lane, ':firsts'), home) end
  call('ZADD', o.key(lane, ':firsts'), row[2], home)
  if o.shares(lane) then o.bound(lane, ':late', row[2], '') end
end

-- An entry waits in the sets of its labels from now on. `name`: its tenant, '' for none; `home`: number, or nil.
function o.put(lane, id, rank, name, home, held, bytes, limit)
  local member, size = encode_id(id), ' ' .. bytes .. ' ' .. limit
  if held then
    add(o.key(lane, ':held'), rank, member .. size .. ' ' .. name)
    o.count(lane, 'held', 1)
  elseif not home then
    add(o.key(lane, ':t:', name), rank, member .. size)
    o.count(lane, 't', 1)
  else
    local n = #tickets
    tickets[n + 1], tickets[n + 2] = entry_field(lane, id), home .. size .. ' ' .. name
    if name == '' then
      add(o.key(lane, ':h:', home), rank, member)
      o.bound(lane, ':firsts', rank, home)
      o.count(lane, 'h', 1)
    else
      add(o.key(lane, ':th:', name), rank, member .. size .. ' ' .. home)
      add(o.key(lane, ':ht:', home), rank, member .. size .. ' ' .. name)
      o.count(lane, 'b', 1)
    end
  end
end

-- True if something of a tenant waits in the lane; '' stands for what has no tenant.
function o.waits(lane, name)
  o.write()
  if name == '' then return counts[lane].h > 0 or call('EXISTS', ready_key(lane)) == 1 end
  return call('EXISTS', o.key(lane, ':t:', name), o.key(lane, ':th:', name)) > 0
end

-- Where an entry waits. Returns its rank, as text; its kind, 'r' in the ready set, else as in `counts`; tenant; home; and the
-- keys and members to remove. Nothing if it does not wait. Without `fields`, an entry is found if it has no label, or a ticket.
function o.find(lane, id, fields)
  local member, c = encode_id(id), counts[lane]
  o.write()
  local rank = call('ZSCORE', ready_key(lane), member)
  if rank then return rank, 'r', '', nil, {ready_key(lane), member} end
  local home, size, name = string.match(c.b + c.h > 0 and call('HGET', TICKETS, entry_field(lane, id)) or '', '^(%d+)( %d+ %d*) (.*)$')
  if name == '' then
    rank = call('ZSCORE', o.key(lane, ':h:', home), member)
    if rank then return rank, 'h', name, home, {o.key(lane, ':h:', home), member} end
  elseif name then
    rank = call('ZSCORE', o.key(lane, ':th:', name), member .. size .. ' ' .. home)
    -- @guard order: what has lost one of its two sets is found in the other
    if not rank then rank = call('ZSCORE', o.key(lane, ':ht:', home), member .. size .. ' ' .. name) end
    if rank then
      return rank, 'b', name, home, {o.key(lane, ':th:', name), member .. size .. ' ' .. home, o.key(lane, ':ht:', home), member .. size .. ' ' .. name}
    end
  end
  if not fields or c.t + c.held == 0 then return nil end
  local _, _, _, raw = skim_entry(lane, id, fields)
  local bytes, limit = body_size(fields)
  size = ' ' .. bytes .. ' ' .. limit
  for _, each in ipairs(raw and {raw, OTHER, ''} or {''}) do   -- it may have come as `other`
    local key, full = o.key(lane, ':t:', each), member .. size
    rank = each ~= '' and call('ZSCORE', key, full)
    if rank then return rank, 't', each, nil, {key, full} end
    key, full = o.key(lane, ':held'), full .. ' ' .. each
    rank = c.held > 0 and call('ZSCORE', key, full)
    if rank then return rank, 'held', each, nil, {key, full} end
  end
end

-- Tenants share the lane no more: requests without a tenant take no turns.
function o.end_sharing(lane)
  sharing().rest(lane, '')
  call('ZREM', o.key(lane, ':late'), '')
  call('ZREMRANGEBYSCORE', o.key(lane, ':past'), '-inf', 'inf')   -- no user may DEL a ready set
end

-- A request of a tenant waits no more: the tenant is not in turn any more if none does.
function o.follow(lane, name)
  local t = sharing()
  if not t then return end
  if not o.waits(lane, name) then
    t.rest(lane, name)
    call('ZREM', o.key(lane, ':late'), name)
  end
  if not o.shares(lane) then o.end_sharing(lane) end
end

-- An entry waits no more, and no pull has taken it. Returns its rank, as text; false if it did not wait.
function o.remove(lane, id, fields)
  local rank, kind, name, home, sets = o.find(lane, id, fields)
  if not rank then return false end
  -- @guard leave: it stands in no set any more
  for i = 1, #sets, 2 do call('ZREM', sets[i], sets[i + 1]) end
  if kind ~= 'r' then o.count(lane, kind, -1) end
  -- @guard leave: its ticket goes
  if home then call('HDEL', TICKETS, entry_field(lane, id)) end
  if kind == 'h' then o.first_changed(lane, home) end
  if kind ~= 'held' and (name ~= '' or o.shares(lane)) then o.follow(lane, name) end
  return rank
end

-- An entry waits from now on, and its tenant is in turn. `name`: its tenant, '' for none; `came`: it is new, so that its tenant
-- may get credit; `nameless`: others without a label become ready with it. Returns true if it stands in the set of a label now.
function o.stand(lane, id, rank, name, bytes, limit, deadline, home, came, nameless)
  local shared, t = o.shares(lane), name ~= '' and tenants() or sharing()
  if t and name ~= '' then t.begin() end   -- all may have been forgotten while it was held
  if t and (name ~= '' or shared) then
    if not shared and (nameless or o.waits(lane, '')) then
      -- @guard tenants: what was ready before them takes turns too
      t.enter(lane, '')
      o.bound(lane, ':late', 0, '')
    end
    t.enter(lane, name, came and bytes, tonumber(limit))
    if deadline then o.bound(lane, ':late', rank, name) end
  end
  if not home and name == '' then return false end
  o.put(lane, id, rank, name, home, false, bytes, limit)
  return true
end

-- The same for one whose fields name the tenant `raw`, nil for none. `held`: it waits for its worker, which interrupted it.
function o.place(lane, id, rank, fields, deadline, raw, home, held, came, nameless)
  local t, bytes, limit = raw and tenants() or sharing(), 0, ''
  if t and raw then t.begin() end   -- before its record is read: what operators have set counts
  local name = t and raw and t.name(raw) or ''
  if name ~= '' or held then bytes, limit = body_size(fields) end
  if not held then return o.stand(lane, id, rank, name, bytes, limit, deadline, home, came, nameless) end
  o.put(lane, id, rank, name, home, held, bytes, limit)
  return true
end

-- Frees requests of a home, up to `most` of each of its sets: they wait for nobody. Returns their number, and true if some is left.
function o.free(lane, home, most)
  local left, freed, gone = false, 0, {[TICKETS] = {nil}}
  o.write()
  for kind, set in pairs({h = ':h:', b = ':ht:'}) do
    local rows = call('ZPOPMIN', o.key(lane, set, home), most)
    for i = 1, #rows, 2 do
      local member, size, name = string.match(rows[i], '^(%S*)( ?%d* ?%d*) ?(.*)$')
      local id = decode_id(member)
      o.count(lane, kind, -1)
      if id then table.insert(gone[TICKETS], entry_field(lane, id)) end
      if id and name ~= '' then
        local key = o.key(lane, ':th:', name)
        gone[key] = gone[key] or {nil}
        table.insert(gone[key], member .. size .. ' ' .. home)
        add(o.key(lane, ':t:', name), rows[i + 1], member .. size)
        o.count(lane, 't', 1)
      elseif id then
        add(ready_key(lane), rows[i + 1], member)
        if o.shares(lane) then o.bound(lane, ':late', rows[i + 1], '') end
      end
    end
    freed, left = freed + #rows / 2, left or #rows == 2 * most
    if rows[1] and kind == 'h' then o.first_changed(lane, home) end
  end
  for key, words in pairs(gone) do
    if words[1] then call(key == TICKETS and 'HDEL' or 'ZREM', key, unpack(words)) end
  end
  -- @guard order: what is freed can be taken at once
  o.write()
  return freed, left
end

function o.flush()
  o.write()
  if not changed then return end
  local words, some = {}, false
  for lane = 1, LANE_COUNT do
    local c = counts[lane]
    words[lane] = string.format('%d %d %d %d;', c.t, c.b, c.h, c.held)
    some = some or o.length(lane) > 0
  end
  changed, words = false, table.concat(words)
  labelled = some and words
  -- @guard order: how many wait is known
  if some then call('HSET', LANES, 'labelled', words) else call('HDEL', LANES, 'labelled') end
end

return o
