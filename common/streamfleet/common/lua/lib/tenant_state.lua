-- @include keys
-- Tenants: what a call knows of them. It is read in few commands, changed here, and written once, at the call's end, or
-- before a command reads it that these tables cannot answer.
local RULES = 'rules'   -- SCHED's field `tenants` while operators have set something of a tenant; else '1'

local function add_state(t)
  local known, changed   -- fields of SERVED
  local turns, moved     -- by lane, tenant to tokens, true while it waits, and tokens as text if WAITING has its turn; and
                         -- those to write
  local added            -- members of WAITING to write

  table.insert(t.begins, function()
    known, changed, turns, moved, added = {}, false, {}, {}, false
    for lane = 1, LANE_COUNT do turns[lane] = {} end
  end)

  -- Reads fields of SERVED that are not known yet.
  function t.fetch(fields)
    local missing = {}
    for _, field in ipairs(fields) do
      if known[field] == nil then missing[#missing + 1], known[field] = field, false end
    end
    for from = 1, #missing, 400 do
      local found = call('HMGET', SERVED, unpack(missing, from, math.min(from + 399, #missing)))
      for i = 1, #found do known[missing[from + i - 1]] = found[i] end
    end
  end

  function t.get(field)
    local value = known[field]
    if value == nil then
      value = call('HGET', SERVED, field)
      known[field] = value
    end
    return value
  end

  function t.put(field, value)   -- false: it goes
    changed = changed or {}
    known[field], changed[field] = value, true
  end

  local function write_fields()
    local set, gone = {}, {}
    for field in pairs(changed) do
      if known[field] then set[#set + 1], set[#set + 2] = field, known[field] else gone[#gone + 1] = field end
    end
    for i = 1, #set, 400 do call('HSET', SERVED, unpack(set, i, math.min(i + 399, #set))) end
    for i = 1, #gone, 400 do call('HDEL', SERVED, unpack(gone, i, math.min(i + 399, #gone))) end
    changed = false
  end

  -- A turn's tokens as text, in the order of the numbers.
  local function in_order(tokens) return string.format('%020.3f', math.min(tokens, 9e15)) end
  local function turn_member(lane, name, words) return 't' .. lane .. words .. '\0' .. name end
  local function turn_field(lane, name) return 'u|' .. lane .. name end

  function t.load_turns(lane, names)
    local fields = {}
    for i, name in ipairs(names) do fields[i] = turn_field(lane, name) end
    t.fetch(fields)
  end

  local function turn_of(lane, name)
    local turn = turns[lane][name]
    if turn == nil then
      local value = t.get(turn_field(lane, name))
      local words, waits = string.match(value or '', '^(%d+%.%d+) (%d)$')
      turn = words and {tonumber(words), waits == '1', waits == '1' and words or nil} or false
      turns[lane][name] = turn
    end
    return turn
  end

  -- Tokens for its weight, and true while it waits; nil for a tenant without a turn.
  function t.turn(lane, name)
    local turn = turn_of(lane, name)
    if not turn then return nil, false end
    return turn[1], turn[2]
  end

  function t.set_turn(lane, name, tokens, waiting)
    local before = turn_of(lane, name)
    turns[lane][name] = {math.max(0, tokens), waiting, before and before[3]}
    moved[lane] = moved[lane] or {}
    moved[lane][name] = true
  end

  -- Of a tenant that does not wait.
  function t.end_turn(lane, name)
    local turn = turns[lane][name]
    if turn and turn[3] then call('ZREM', WAITING, turn_member(lane, name, turn[3])) end
    if moved[lane] then moved[lane][name] = nil end
    turns[lane][name] = false
    t.put(turn_field(lane, name), false)
  end

  local function write_turns(lane)
    local gone, there = {}, {}
    for name in pairs(moved[lane]) do
      local turn = turns[lane][name]
      local words = in_order(turn[1])
      if turn[3] then gone[#gone + 1] = turn_member(lane, name, turn[3]) end
      turn[3] = turn[2] and words or nil
      if turn[3] then there[#there + 1], there[#there + 2] = 0, turn_member(lane, name, words) end
      t.put(turn_field(lane, name), words .. (turn[2] and ' 1' or ' 0'))
    end
    moved[lane] = nil
    for i = 1, #gone, 400 do call('ZREM', WAITING, unpack(gone, i, math.min(i + 399, #gone))) end
    for i = 1, #there, 400 do call('ZADD', WAITING, unpack(there, i, math.min(i + 399, #there))) end
  end

  -- The tenants that wait in a lane and were charged least: names and tokens by turns.
  function t.lowest(lane, most)
    if moved[lane] then write_turns(lane) end
    local rows, found = call('ZRANGEBYLEX', WAITING, '[t' .. lane, '(t' .. lane + 1, 'LIMIT', 0, most), {}
    for i, member in ipairs(rows) do
      local words, name = string.sub(member, 3, 22), string.sub(member, 24)
      local tokens = tonumber(words) or 0
      if not turns[lane][name] then turns[lane][name] = {tokens, true, words} end
      found[2 * i - 1], found[2 * i] = name, tokens
    end
    return found
  end

  function t.add_to_index(member)
    added = added or {}
    added[#added + 1], added[#added + 2] = 0, member
  end

  -- Call it before a command reads WAITING.
  function t.write_index()
    if not added then return end
    local members = added
    added = false
    for i = 1, #members, 400 do call('ZADD', WAITING, unpack(members, i, math.min(i + 399, #members))) end
  end

  function t.write_state()
    t.write_index()
    for lane in pairs(moved) do write_turns(lane) end
    if changed then write_fields() end
  end
end
