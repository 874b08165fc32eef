-- Repair of what waits with a label: in which set an entry belongs, :firsts and :late, turns, and how many there are.
-- `suffix` is the name of a set behind that of the ready set, '' for itself.
local o, t, self = order(), tenants(), {}
if not o then return false end
local OTHER, COUNTED = 'other', {[':t:'] = 't', [':th:'] = 'b', [':h:'] = 'h', [':held'] = 'held'}
local shared = {}
for lane = 1, LANE_COUNT do shared[lane] = o.shares(lane) end
look_at_queue()
if not mend and ARGV[3] ~= 'counts' then   -- what LANES has lost of all this is looked for too
  some_tenants = some_tenants or '1'
  for lane = 1, LANE_COUNT do
    local c = o.counts[lane]
    c.t, c.b, c.h, c.held = c.t + 1, c.b + 1, c.h + 1, c.held + 1
  end
end

-- What a set and its member say: the kind of set, the tenant, the home, and ' <bytes> <limit>'; nil for what they do not say.
local function parts(suffix, member)
  local set, name = string.match(suffix, '^(:?%a*:?)(.*)$')
  local size, label = string.match(member or '', '^%S+( %d+ %d*) ?(.*)$')
  if set == ':t:' then return set, name, nil, size end
  if set == ':th:' then return set, name, label, size end
  if set == ':ht:' then return set, label, name, size end
  if set == ':held' then return set, label, nil, size end
  return set, '', set == ':h:' and name or nil, size
end

-- The other set in which an entry with a tenant and a home stands, and its member there.
local function twin(lane, suffix, member)
  local set, tenant, home, size = parts(suffix, member)
  if not size or set ~= ':th:' and set ~= ':ht:' then return nil end
  local encoded = string.match(member, '^%S+')
  if set == ':th:' then return ':ht:', o.key(lane, ':ht:', home), encoded .. size .. ' ' .. tenant end
  return ':th:', o.key(lane, ':th:', tenant), encoded .. size .. ' ' .. home
end

function self.take_out(lane, suffix, member)
  local set, tenant, home, size = parts(suffix, member)
  local encoded = string.match(member, '^%S+')
  local id = encoded and decode_id(encoded)
  local function remove(kind, key, full)
    if call('ZREM', key, full) == 1 and COUNTED[kind] then o.count(lane, COUNTED[kind], -1) end
  end
  remove(set, o.key(lane, suffix), member)
  local kind, key, full = twin(lane, suffix, member)
  if kind then remove(kind, key, full) end
  if set == ':h:' then o.first_changed(lane, home) end
  local ticket = home and id and call('HGET', KEYS[SHARED - 4], entry_field(lane, id))
  -- @guard repair: a ticket goes with what it is for
  if ticket and ticket == home .. (size or ' 0 ') .. ' ' .. tenant then call('HDEL', KEYS[SHARED - 4], entry_field(lane, id)) end
  if tenant and set ~= ':held' and (tenant ~= '' or shared[lane]) then o.follow(lane, tenant) end
end

-- Where the first of a home stands must be known.
function self.look_at_first(lane, home)
  local row = call('ZRANGE', o.key(lane, ':h:', home), 0, 0, 'WITHSCORES')
  if tonumber(row[2] or nil) == tonumber(call('ZSCORE', o.key(lane, ':firsts'), home) or nil) then return end
  note('first_off', LANE_NAMES[lane] .. ':' .. home)
  -- @guard repair: the first of a home is known
  if mend then o.first_changed(lane, home) end
end

-- A tenant that waits must be in turn; one at its limit enters when a run of it ends.
local function look_at_turn(lane, name)
  if not t or t.turn(lane, name) or t.record(name).running >= t.record(name).most then return end
  note('turn_gone', LANE_NAMES[lane] .. ':' .. name)
  -- @guard repair: who waits is in turn
  if mend then t.enter(lane, name) end
end

function self.look_at_set(lane, suffix)
  local set, name = string.match(suffix, '^(:?%a*:?)(.*)$')
  if (set == ':t:' or set == ':th:') and call('EXISTS', o.key(lane, suffix)) == 1 then look_at_turn(lane, name) end
  if set == ':h:' then self.look_at_first(lane, name) end
end

-- A deadline to come is no earlier than its tenant's in `late`.
local function look_at_deadline(lane, suffix, member, id, deadline)
  local set, tenant, home = parts(suffix, member)
  local rank = tonumber(call('ZSCORE', o.key(lane, suffix), member))
  if not shared[lane] or set == ':held' or not deadline or rank <= now_ms() or rank == enqueued_ms(lane, id) + cfg.patience_ms then return end
  if home and tenant == '' and tonumber(call('ZSCORE', o.key(lane, ':firsts'), home) or nil) ~= rank then return end
  local bound = tonumber(call('ZSCORE', o.key(lane, ':late'), tenant) or nil)
  if bound and bound <= rank then return end
  note('first_off', entry_name(lane, id))
  -- @guard repair: the first deadline of a tenant is known
  if mend then o.bound(lane, ':late', rank, tenant) end
end

-- An entry that waits stands in the sets of its labels, and in no other. It is removed from a wrong one, and placed anew.
function self.look_at_place(lane, suffix, member, id, fields)
  local _, deadline, _, raw = skim_entry(lane, id, fields)
  local _, tenant = parts(suffix, member)
  local _, _, _, _, places = o.find(lane, id, fields)
  local kind, other, full = twin(lane, suffix, member)
  local right = tenant == (t and raw and t.name(raw) or '') or t and raw and tenant == OTHER
  local stands = false
  for i = 1, #(places or {}), 2 do stands = stands or places[i] == o.key(lane, suffix) and places[i + 1] == member end
  if right and stands and (not kind or call('ZSCORE', other, full)) then return look_at_deadline(lane, suffix, member, id, deadline) end
  note('ready_label', entry_name(lane, id))
  if not mend then return end
  self.take_out(lane, suffix, member)
  if o.find(lane, id, fields) then return end
  -- @guard repair: what stood in another's set is placed anew
  local _, _, ended = come_back(lane, id, fields)
  made_ready = made_ready + 1 - ended
end

-- True if an entry waits for a home.
function self.waits_for_home(lane, id)
  local _, kind = o.find(lane, id)
  return kind == 'h' or kind == 'b'
end

-- Counts what waits with a label. ARGV names sets that were there; later ones are of tenants and homes that have records.
function self.look_at_counts(lane)
  local c, number, seen = o.counts[lane], {t = 0, b = 0, h = 0, held = 0}, {}
  local function add(suffix)
    local kind = COUNTED[(string.match(suffix, '^:%a+:?'))]
    if kind and not seen[suffix] then
      number[kind], seen[suffix] = number[kind] + (call_if_typed('ZCARD', o.key(lane, suffix)) or 0), true
    end
  end
  add(':held')
  for i = 8, #ARGV do add(ARGV[i]) end
  for _, field in ipairs(call_if_typed('HKEYS', KEYS[SHARED - 3]) or {}) do
    local name = string.match(field, '^t|(.*)$')
    if name then add(':t:' .. name); add(':th:' .. name) end
  end
  for _, home in ipairs(call_if_typed('ZRANGE', KEYS[SHARED], 0, -1) or {}) do add(':h:' .. home) end
  local off = false
  for kind, some in pairs(number) do off = off or some ~= c[kind] end
  if off then note('labels_miscounted', LANE_NAMES[lane]) end
  if not mend then return end
  -- @guard repair: those with a label are counted
  for kind, some in pairs(number) do if some ~= c[kind] then o.count(lane, kind, some - c[kind]) end end
  -- @guard repair: it is known that tenants are there
  if t and c.t + c.b > 0 then t.begin() end
  -- @guard repair: it is known that homes are there
  if c.b + c.h > 0 and homes() then homes().begin() end
  -- @guard repair: who has no tenant is in turn
  if o.shares(lane) and o.waits(lane, '') then look_at_turn(lane, '') end
end

return self
