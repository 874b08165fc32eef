-- @include tenant_state
-- Tenants: their records, and when they are in turn.
local MOST_TENANTS, MOST_CREDIT, LOOKED_AT, UNKNOWN, SEEN_MS, HOUR_MS = 2000, 4096, 16, 128, 60000, 3600000   -- credit: tokens
local BEFORE_EQUALS = 1 / 1024   -- tokens
local RULES, RECORD, RECORD_BYTES = 'rules', '<dddddddd', 64   -- RULES: in LANES while operators have set limits or weights
local names = {}   -- by what was given, the name under which it is counted

local function read_record(name, words, lengths, rule)
  local running, requests, charged, tokens, lost, missed, seen, credited = 0, 0, 0, 0, 0, 0, 0, 0
  if words and #words == RECORD_BYTES then
    running, requests, charged, tokens, lost, missed, seen, credited = struct.unpack(RECORD, words)
  end
  local weight, most = 1, nil
  if rule then
    weight, most = string.match(rule, '^(%S+) ?(%d*)')
    weight = tonumber(weight) or 1
  end
  records[name] = {name = name, new = not words, lengths = lengths or '', running = running, requests = requests, charged = charged,
    tokens = tokens, lost = lost, missed = missed, seen = seen, credited = credited, weight = weight > 0 and weight or 1,
    most = tonumber(most) or math.huge, set = rule, changed = false}
end

-- Fetches the records of tenants and their lengths, and what operators have set, if LANES tells of some.
function t.fetch_records(wanted)
  local some, fields, n = {nil}, {nil, nil}, 0
  for i = 1, #wanted do
    local name = wanted[i]
    if records[name] == nil then
      n, records[name] = n + 1, false
      some[n], fields[2 * n - 1], fields[2 * n] = name, 't|' .. name, 'l|' .. name
    end
  end
  for from = 1, n, 200 do
    local to = math.min(from + 199, n)
    local found = call('HMGET', SERVED, unpack(fields, 2 * from - 1, 2 * to))
    local rules = some_tenants == RULES and call_if_typed('HMGET', TENANTS, unpack(some, from, to)) or {}
    for i = from, to do
      local at = 2 * (i - from)
      read_record(some[i], found[at + 1], found[at + 2], rules[i - from + 1])
    end
  end
end

-- The value of the field `tenants` of LANES while a tenant is known.
function t.rules() return (call_if_typed('HLEN', TENANTS) or 0) > 0 and RULES or '1' end

-- Numbers by name; the tenant's weight, and the most that it may run at once.
function t.record(name)
  if not records[name] then t.fetch_records({name}) end
  return records[name]
end

-- The record, for a change of it.
function t.change(name)
  local record = t.record(name)
  if not record.changed then dirty[#dirty + 1], record.changed = record, true end
  return record
end

local function count_known(more_of) t.put('known', string.format('%.0f', math.max(0, t.number('known') + more_of))) end

function t.forget_record(name)
  if records[name] then records[name].changed = false end
  read_record(name)
  t.put('t|' .. name, false)
  t.put('l|' .. name, false)
  count_known(-1)
end

-- The name under which a tenant is counted: anybody may XADD any tenant.
function t.name(raw)
  if not raw or raw == '' then return '' end
  if names[raw] then return names[raw] end
  local name = raw
  if #raw > 256 or string.find(raw, '%c') then
    name = 'other'
  -- @guard tenants: their number is bounded
  elseif t.record(raw).new and not t.record(raw).set and t.number('known') >= MOST_TENANTS then
    name = 'other'
  end
  names[raw] = name
  return name
end

local function write_records()
  local new = 0
  for _, r in ipairs(dirty) do
    if r.changed then
      new, r.new, r.changed = new + (r.new and 1 or 0), false, false
      t.write_field('t|' .. r.name, struct.pack(RECORD, r.running, r.requests, math.max(0, r.charged), math.max(0, r.tokens), r.lost, r.missed,
        r.seen, r.credited))
    end
  end
  dirty = {}
  if new > 0 then count_known(new) end
end

function t.level_field(lane) return 'level|' .. DIGITS[lane] end

-- Tokens of the tenant in turn that was charged least, but no less than one had that was picked in its turn: so a tenant that
-- starts a request below the level does not lower it for the next.
function t.level(lane) return math.max(t.least(lane) or 0, t.number(t.level_field(lane))) end

-- A tenant that had so many tokens is picked in its turn.
function t.pass_level(lane, tokens)
  if tokens > t.number(t.level_field(lane)) then t.put(t.level_field(lane), string.format('%.17g', tokens)) end
end

-- True if a run of the tenant has ended its request, or left a charge; and for '', no tenant.
local function has_history(record) return record.name == '' or record.requests > 0 or record.charged > 0 end

-- Tokens at which a name without history starts: one such name behind the other. Between two of them, each of the next tenants in
-- turn that has history gets as much as the first of the two. If none has, it is as if 128 had.
local function start_of_new(lane, level, cost)
  local rows, some, with = t.lowest(lane, LOOKED_AT), {nil}, 0
  for i = 1, #rows, 2 do some[#some + 1] = rows[i] end
  t.fetch_records(some)
  for _, name in ipairs(some) do with = with + (has_history(t.record(name)) and 1 or 0) end
  if with == 0 then with = UNKNOWN end
  local field = 'new|' .. DIGITS[lane]
  -- @guard tenants: names without history go one behind the other
  level = math.max(level, t.number(field))
  t.put(field, string.format('%.17g', level + cost / with))
  return level
end

-- A tenant is in turn, if it may run one more. `bytes`, `limit`: of a request that has come; nil for one that comes back.
function t.enter(lane, name, bytes, limit)
  local tokens, in_turn = t.turn(lane, name)
  local record = t.record(name)
  if now_ms() - record.seen >= SEEN_MS then t.change(name).seen = now_ms() end
  -- @guard tenants: who may not run one more is not in turn
  if record.running >= record.most or in_turn then return end
  local level = t.level(lane)
  local start = level
  if bytes and name ~= '' then
    local cost = math.min(MOST_CREDIT, (t.cost(record, bytes, limit))) / record.weight
    if not has_history(record) then
      start = start_of_new(lane, level, cost)
    elseif math.abs(now_ms() - record.credited) >= HOUR_MS then
      start = level - cost
    else
      -- @guard tenants: without credit it goes before those at the level
      start = level - BEFORE_EQUALS
    end
  end
  start = math.max(tokens or 0, start)
  if start < level - BEFORE_EQUALS then t.change(name).credited = now_ms() end
  t.set_turn(lane, name, start, true)
end

-- A tenant is not in turn any more.
function t.rest(lane, name)
  local tokens, in_turn = t.turn(lane, name)
  if in_turn then t.set_turn(lane, name, tokens, false) end
end

function t.add_tokens(lane, name, tokens)
  if tokens == 0 then return end
  local before, in_turn = t.turn(lane, name)
  if before or tokens > 0 then t.set_turn(lane, name, (before or 0) + tokens, in_turn) end
end

-- True if a tenant that is not in turn would come back with all its credit, because others were charged so much more.
function t.is_paid(lane, name) return t.turn(lane, name) <= t.level(lane) - MOST_CREDIT / t.record(name).weight end

-- The beginning of a name's hash, for those who must not read names.
function t.hash(name) return string.sub(redis.sha1hex(name), 1, 8) end
