-- @include keys
-- Tenants: what a call knows of them. It is read in few commands, changed here, and written once, at the call's end, or
-- before a command reads it that these tables cannot answer.
local RULES = 'rules'   -- SCHED's field `tenants` while operators have set something of a tenant; else '1'

local function add_state(t)
  local known, changed   -- fields of SERVED
  local turns, moved     -- by lane, tenant to tokens and true while it waits; and those to write
  local added            -- members of WAITING to write

  table.insert(t.begins, function()
    known, changed, turns, moved, added = {}, false, {}, {}, false
    for lane = 1, LANE_COUNT do turns[lane] = {} end
  end)

  local function turns_key(lane) return KEYS[2 * LANE_COUNT + lane] end
  function t.precise(number) return string.format('%.17g', number) end

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

  function t.load_turns(lane, names)
    local mine, missing = turns[lane], {}
    for _, name in ipairs(names) do
      if mine[name] == nil then missing[#missing + 1], mine[name] = name, false end
    end
    for from = 1, #missing, 400 do
      local scores = call('ZMSCORE', turns_key(lane), unpack(missing, from, math.min(from + 399, #missing)))
      for i = 1, #scores do
        local score = tonumber(scores[i] or nil)
        if score then mine[missing[from + i - 1]] = {score < 0 and -score - 1 or score, score >= 0} end
      end
    end
  end

  -- A tenant is known to wait, with so many tokens for its weight.
  function t.seen_waiting(lane, name, tokens) turns[lane][name] = turns[lane][name] or {tokens, true} end

  -- Tokens for its weight, and true while it waits; nil for a tenant without a turn.
  function t.turn(lane, name)
    if turns[lane][name] == nil then t.load_turns(lane, {name}) end
    local turn = turns[lane][name]
    if not turn then return nil, false end
    return turn[1], turn[2]
  end

  function t.set_turn(lane, name, tokens, waiting)
    turns[lane][name] = {math.max(0, tokens), waiting}
    moved[lane] = moved[lane] or {}
    moved[lane][name] = true
  end

  function t.end_turn(lane, name)
    if moved[lane] then moved[lane][name] = nil end
    turns[lane][name] = false
    call('ZREM', turns_key(lane), name)
  end

  local function write_turns(lane)
    local words = {}
    for name in pairs(moved[lane]) do
      local tokens, waiting = unpack(turns[lane][name])
      words[#words + 1], words[#words + 2] = t.precise(waiting and tokens or -tokens - 1), name
    end
    moved[lane] = nil
    for i = 1, #words, 400 do call('ZADD', turns_key(lane), unpack(words, i, math.min(i + 399, #words))) end
  end

  -- The tenants that wait in a lane and were charged least: names and tokens, as ZRANGEBYSCORE returns them.
  function t.lowest(lane, most)
    if moved[lane] then write_turns(lane) end
    return call('ZRANGEBYSCORE', turns_key(lane), 0, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  end

  -- Tenants that do not wait and were charged no more than `tokens`.
  function t.charged_less(lane, tokens, most)
    return call('ZRANGEBYSCORE', turns_key(lane), t.precise(-tokens - 1), '(0', 'LIMIT', 0, most)
  end

  function t.end_turns(lane)
    turns[lane], moved[lane] = {}, nil
    call('ZREMRANGEBYSCORE', turns_key(lane), '-inf', '+inf')
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
