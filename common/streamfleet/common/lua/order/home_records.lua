-- @include entry
-- Affinity: which worker is the home of a session, or of a beginning of prompts, and how much each worker has to do.
local SESSIONS, LOADS = KEYS[SHARED - 1], KEYS[SHARED]
local LOST = 1e9              -- load of a worker that is no home any more
local NOTED = '0'             -- value of the field `sessions` of LANES while beginnings were seen, but none has a home

local h = {}
local HOT, OVER, MOST_HOMES, LATELY_MS = 8, 4, 16, 4000
-- By field; by number; number to what is to be added; fields to write.
local records, loads, moves, changed = {}, {}, {}, {}

local function digest(kind, text) return kind .. string.sub(redis.sha1hex(text), 1, 16) end

-- A name of one tenant. Clients accept 256 characters, of up to 4 bytes each; by XADD a name may have megabytes.
local function own_name(tenant, kind, name) return string.sub(tenant, 1, 1024) .. '\0' .. kind .. string.sub(name, 1, 1024) end

-- The beginning of the prompt, as the body spells it; nil for a short one.
local function beginning(body)
  -- A short body is not cut: Redis's Lua hashes each new string whole.
  local head, at = #body > 8192 and string.sub(body, 1, 8192) or body, nil
  for _, name in ipairs({'"messages"', '"prompt"', '"input"'}) do at = at or string.find(head, name, 1, true) end
  local part = at and string.sub(body, at, at + BEGINNING_BYTES - 1) or ''
  return #part == BEGINNING_BYTES and part or nil
end

-- The fields of SESSIONS for an entry: of its session, and of its beginning; each may be nil. A tenant's own: nobody
-- else's requests tell where its cache is.
local function names_of(fields)
  local session, tenant, body = '', '', ''
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if name == 'session' then session = value elseif name == 'tenant' then tenant = value
    elseif name == 'body' then body = value end
  end
  local part = beginning(body)
  return session ~= '' and digest('s', own_name(tenant, '', session)) or nil, part and digest('p', own_name(tenant, '', '') .. part)
end

local function record_of(name)
  if records[name] == nil then
    local words = call('HGET', SESSIONS, name)
    local last, level, list = string.match(words or '', '^(%d+) (%S+) (%S*)$')
    local record = {last = tonumber(last) or 0, level = tonumber(level) or 0, homes = {}, new = not words}
    for number in string.gmatch(list or '', '%d+') do record.homes[#record.homes + 1] = tonumber(number) end
    records[name] = record
  end
  return records[name]
end

-- The ms by which a turn goes ahead: the age of its program when it came, but at most half of its time to its rank, so
-- that close deadlines of others go first. A session is a program, too. The record's `level` is the first arrival.
function h.lead(tenant, session, program, arrived, rank)
  local name = digest('f', program ~= '' and own_name(tenant, 'p', program) or own_name(tenant, 's', session))
  local record = record_of(name)
  if record.level == 0 or arrived < record.level then record.level = arrived end
  record.last, changed[name] = now_ms(), true
  local age = arrived - record.level
  -- @guard program: close deadlines of others go first
  age = math.min(age, math.floor((rank - arrived) / 2))
  return age
end

-- Counts a use, of which half is forgotten in about 3 seconds.
local function use(name)
  local record = record_of(name)
  local past = math.max(0, now_ms() - record.last)
  record.last, record.level = now_ms(), record.level * math.exp(-past / LATELY_MS) + 1
  changed[name] = true
  return record
end

-- Held and waiting requests of a home; nil if it is none any more.
function h.work_of(number)
  if loads[number] == nil then
    local load = tonumber(call_if_typed('ZSCORE', LOADS, number) or nil)
    loads[number] = load and load < LOST and load or false
  end
  return loads[number] and loads[number] + (moves[number] or 0) or nil
end

function h.add_work(number, more) moves[number] = (moves[number] or 0) + more end

function h.write_loads()
  for number, more in pairs(moves) do
    if more ~= 0 and h.work_of(number) then
      loads[number] = math.max(0, h.work_of(number))
      call('ZADD', LOADS, 'XX', loads[number], number)
    end
    moves[number] = nil
  end
end

function h.set_work(number, load)
  loads[number], moves[number] = load < LOST and load, nil
  call_if_typed('ZADD', LOADS, load, number)
end

local function least_loaded(numbers)
  local best, least
  for _, number in ipairs(numbers) do
    local load = h.work_of(number)
    if load and (not least or load < least) then best, least = number, load end
  end
  return best, least
end

-- The least loaded home. Of several, the name of the session or beginning decides: so homes spread in an idle fleet, too.
local function least_of_all(name)
  h.write_loads()
  local row = call_if_typed('ZRANGE', LOADS, 0, 0, 'WITHSCORES') or {}
  local load = tonumber(row[2] or nil)
  if not load or load >= LOST then return nil end
  local place = tonumber(string.sub(name, -4), 16) % call('ZCOUNT', LOADS, row[2], row[2])
  -- @guard affinity: homes spread in an idle fleet
  if place > 0 then row = call('ZRANGEBYSCORE', LOADS, row[2], row[2], 'LIMIT', place, 1) end
  return tonumber(row[1]), load
end

local function put_first(record, number, most)
  for i = #record.homes, 1, -1 do
    if record.homes[i] == number or not h.work_of(record.homes[i]) then table.remove(record.homes, i) end
  end
  table.insert(record.homes, 1, number)
  for i = #record.homes, most + 1, -1 do table.remove(record.homes, i) end
end

local function most_homes(record) return record.level > HOT and 1 + math.floor(record.level / HOT) or 1 end

-- A session that has a home. A hot one may have several; nil if all have enough to do.
local function home_of_session(lane, name, home, load)
  local record = record_of(name)
  if record.level <= HOT or not h.has_waiting(lane, home) then return home end
  local other, less = least_of_all(name)
  if other and less + OVER <= load and #record.homes < most_homes(record) then
    put_first(record, other, most_homes(record))
    return other
  end
  return record.level <= 2 * HOT and home or nil
end

-- The home of an entry; nil if anybody may take it.
function h.home_for(lane, fields)
  local session, prefix = names_of(fields)
  if not session and not prefix then return nil end
  local mine = session and use(session)
  if mine then
    local home, load = least_loaded(mine.homes)
    -- @guard affinity: a session stays where its cache is
    if home then return home_of_session(lane, session, home, load) end
  end
  local shared = prefix and use(prefix)
  -- @guard affinity: a beginning counts when it comes again
  if not session and shared.new then return nil end
  h.begin()
  local home, load = least_of_all(session or prefix)
  if not home then return nil end
  local known, more = least_loaded(shared and shared.homes or {})
  -- @guard affinity: a beginning goes where it was read before
  if known and more <= load + OVER then home = known end
  if mine then put_first(mine, home, 1) end
  if shared then put_first(shared, home, MOST_HOMES) end
  return home
end

-- A worker took what had another home, or none: what comes next belongs to it.
function h.moved(fields, number)
  local session, prefix = names_of(fields)
  if session then
    put_first(record_of(session), number, most_homes(record_of(session)))
    changed[session] = true
  end
  if prefix then
    put_first(record_of(prefix), number, MOST_HOMES)
    changed[prefix] = true
  end
end

function h.write_records()
  h.write_loads()
  if not next(changed) then return end
  local words, new = {}, false
  for name in pairs(changed) do
    local record = records[name]
    new, record.new = new or record.new, false
    words[#words + 1] = name
    words[#words + 1] = string.format('%.0f %.2f %s', record.last, record.level, table.concat(record.homes, ','))
  end
  changed = {}
  if new and not some_sessions then call('HSET', LANES, 'sessions', NOTED) end
  for i = 1, #words, 400 do call('HSET', SESSIONS, unpack(words, i, math.min(i + 399, #words))) end
end
