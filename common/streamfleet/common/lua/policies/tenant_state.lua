-- @include entry
-- Tenants: what a call knows of them. It is read in few commands, changed here, and written once, at the call's end, or
-- before a command reads it that these tables cannot answer.
local WAITING, SERVED, TENANTS = unpack(KEYS, SHARED - 5, SHARED - 3)
local RULES = 'rules'   -- the field `tenants` of LANES while operators have set something of a tenant; else '1'

local function turns_key(lane) return KEYS[2 * LANE_COUNT + lane] end

local function add_state(t)
  t.most_tokens = 9e15   -- of a turn
  local NONE = {}
  local known, changed = {}, false   -- fields of SERVED
  local more = {}                    -- names and values of more fields to write, which nothing reads in this call
  local turns, moved = {}, {}        -- by lane: tenant to {tokens for its weight, true while it waits}, and those to write
  for lane = 1, LANE_COUNT do turns[lane] = {} end
  local least = {}                   -- by lane: the least tokens of who waits, as far as known
  local added = false                -- members of WAITING to write

  -- Calls a command with what `list` has, a part at a time.
  local function call_in_parts(verb, key, list)
    for i = 1, #list, 400 do call(verb, key, unpack(list, i, math.min(i + 399, #list))) end
  end

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

  function t.write_field(field, value)
    local n = #more
    more[n + 1], more[n + 2] = field, value
  end

  local function write_fields()
    local set, gone, n = more, nil, #more
    for field in pairs(changed or NONE) do
      local value = known[field]
      if value then
        set[n + 1], set[n + 2], n = field, value, n + 2
      else
        gone = gone or {}
        gone[#gone + 1] = field
      end
    end
    call_in_parts('HSET', SERVED, set)
    if gone then call_in_parts('HDEL', SERVED, gone) end
    changed, more = false, {}
  end

  -- A turn's score is its tokens; of a tenant that does not wait, as much below -1.
  function t.score(tokens, waiting) return waiting and tokens or -1 - tokens end

  local function turn_in(score)
    score = tonumber(score or nil)
    if not score then return false end
    if score >= 0 then return {score, true} end
    return {-1 - score, false}
  end

  function t.load_turns(lane, names)
    local missing = {}
    for _, name in ipairs(names) do
      if turns[lane][name] == nil then missing[#missing + 1], turns[lane][name] = name, false end
    end
    for from = 1, #missing, 400 do
      local found = call('ZMSCORE', turns_key(lane), unpack(missing, from, math.min(from + 399, #missing)))
      for i = 1, #found do turns[lane][missing[from + i - 1]] = turn_in(found[i]) end
    end
  end

  -- Tokens for its weight, and true while it waits; nil for a tenant without a turn.
  function t.turn(lane, name)
    local turn = turns[lane][name]
    if turn == nil then
      turn = turn_in(call('ZSCORE', turns_key(lane), name))
      turns[lane][name] = turn
    end
    if not turn then return nil, false end
    return turn[1], turn[2]
  end

  function t.set_turn(lane, name, tokens, waiting)
    local before = turns[lane][name]
    tokens = math.max(0, math.min(tokens, t.most_tokens))
    if before == nil then
      least[lane] = nil
    elseif least[lane] and waiting and tokens <= least[lane] then
      least[lane] = tokens
    elseif before and before[2] and before[1] == least[lane] then
      least[lane] = nil
    end
    turns[lane][name] = {tokens, waiting}
    moved[lane] = moved[lane] or {}
    moved[lane][name] = true
  end

  -- Writes turns at once: scores and tenants, as ZADD takes them.
  function t.store_turns(lane, scores)
    least[lane] = nil
    for i = 2, #scores, 2 do
      if turns[lane][scores[i]] ~= nil then turns[lane][scores[i]] = nil end   -- a nil for a key that is not there makes the table grow
      if moved[lane] then moved[lane][scores[i]] = nil end
    end
    call_in_parts('ZADD', turns_key(lane), scores)
  end

  -- The least tokens of who waits; nil for nobody.
  function t.least(lane)
    if not least[lane] then least[lane] = tonumber(t.lowest(lane, 1)[2] or nil) end
    return least[lane]
  end

  function t.end_turn(lane, name)
    if moved[lane] then moved[lane][name] = nil end
    turns[lane][name] = false
    call('ZREM', turns_key(lane), name)
  end

  local function write_turns(lane)
    local scores, n = {}, 0
    for name in pairs(moved[lane]) do
      local turn = turns[lane][name]
      scores[n + 1], scores[n + 2], n = t.score(turn[1], turn[2]), name, n + 2
    end
    moved[lane] = nil
    call_in_parts('ZADD', turns_key(lane), scores)
  end

  -- The tenants that wait in a lane and were charged least: names and tokens by turns, as text.
  function t.lowest(lane, most)
    if moved[lane] then write_turns(lane) end
    return call('ZRANGEBYSCORE', turns_key(lane), 0, 'inf', 'WITHSCORES', 'LIMIT', 0, most)
  end

  -- Up to `most` of them, as far apart in order of turns as can be, as t.lowest returns them; and the number of all.
  function t.sample(lane, most)
    if moved[lane] then write_turns(lane) end
    local waiting, rows = call('ZCOUNT', turns_key(lane), 0, 'inf'), {}
    local idle = call('ZCARD', turns_key(lane)) - waiting
    most = math.min(most, waiting)
    for i = 0, most - 1 do
      local at = idle + math.floor(i * waiting / most)
      rows[2 * i + 1], rows[2 * i + 2] = unpack(call('ZRANGE', turns_key(lane), at, at, 'WITHSCORES'))
    end
    return rows, waiting
  end

  -- Tenants that do not wait and were charged at most so much, the most charged first.
  function t.idle(lane, tokens, most)
    if moved[lane] then write_turns(lane) end
    return call('ZRANGEBYSCORE', turns_key(lane), -1 - tokens, '(0', 'LIMIT', 0, most)
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
    call_in_parts('ZADD', WAITING, members)
  end

  function t.write_state()
    t.write_index()
    for lane in pairs(moved) do write_turns(lane) end
    if changed or more[1] then write_fields() end
  end
end
