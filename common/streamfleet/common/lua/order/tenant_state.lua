-- Tenants: what a call knows of them. It is read in few commands, changed here, and written once, at the call's end, or
-- before a command reads it that these tables cannot answer. `t` has the functions that others call.
local SERVED, TENANTS = KEYS[SHARED - 3], KEYS[SHARED - 2]
local MOST_TOKENS = 9e15           -- of a turn
local t = {}
local known, changed = {}, {}      -- fields of SERVED, and names of those to write
local more = {}                    -- names and values of fields to write that nothing reads in this call
local turns, moved, least = {}, {}, {}   -- by lane: tenant to {tokens for its weight, in turn}; those to write; least tokens
local records, dirty = {}, {}      -- by name, and those that have changed
for lane = 1, LANE_COUNT do turns[lane], moved[lane] = {}, {} end

-- Calls a command with what `list` has, a part at a time.
local function call_in_parts(verb, key, list)
  for i = 1, #list, 400 do call(verb, key, unpack(list, i, math.min(i + 399, #list))) end
end

-- Reads fields of SERVED that are not known yet.
function t.fetch(fields)
  local missing = {nil}
  for i = 1, #fields do
    local field = fields[i]
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

function t.number(field) return tonumber(t.get(field) or nil) or 0 end

function t.put(field, value)   -- false: it goes
  known[field], changed[field] = value, true
end

function t.write_field(field, value)
  local n = #more
  more[n + 1], more[n + 2] = field, value
end

local function write_fields()
  local set, gone, n = more, {nil}, #more
  for field in pairs(changed) do
    local value = known[field]
    if value then
      set[n + 1], set[n + 2], n = field, value, n + 2
    else
      gone[#gone + 1] = field
    end
  end
  call_in_parts('HSET', SERVED, set)
  call_in_parts('HDEL', SERVED, gone)
  changed, more = {}, {}
end

local function turns_key(lane) return KEYS[2 * LANE_COUNT + lane] end

-- A turn's score is its tokens; of a tenant that is not in turn, as much below -1.
local function turn_in(score)
  score = tonumber(score or nil)
  if not score then return false end
  if score >= 0 then return {score, true} end
  return {-1 - score, false}
end

function t.load_turns(lane, names)
  local missing = {nil}
  for i = 1, #names do
    if turns[lane][names[i]] == nil then missing[#missing + 1], turns[lane][names[i]] = names[i], false end
  end
  for from = 1, #missing, 400 do
    local found = call('ZMSCORE', turns_key(lane), unpack(missing, from, math.min(from + 399, #missing)))
    for i = 1, #found do turns[lane][missing[from + i - 1]] = turn_in(found[i]) end
  end
end

-- Tokens for its weight, and true while it is in turn; nil for a tenant without a turn.
function t.turn(lane, name)
  local turn = turns[lane][name]
  if turn == nil then
    turn = turn_in(call('ZSCORE', turns_key(lane), name))
    turns[lane][name] = turn
  end
  if not turn then return nil, false end
  return turn[1], turn[2]
end

function t.set_turn(lane, name, tokens, in_turn)
  local before = turns[lane][name]
  tokens = math.max(0, math.min(tokens, MOST_TOKENS))
  if before == nil or before and before[2] and before[1] == least[lane] then
    least[lane] = nil
  elseif least[lane] and in_turn and tokens < least[lane] then
    least[lane] = tokens
  end
  turns[lane][name], moved[lane][name] = {tokens, in_turn}, true
end

-- Writes turns at once: scores and tenants, as ZADD takes them.
function t.store_turns(lane, scores)
  least[lane] = nil
  for i = 2, #scores, 2 do turns[lane][scores[i]], moved[lane][scores[i]] = nil, nil end
  call_in_parts('ZADD', turns_key(lane), scores)
end

local function write_turns(lane)
  local scores, n = {nil, nil}, 0
  for name in pairs(moved[lane]) do
    local turn = turns[lane][name]
    scores[n + 1], scores[n + 2], n = turn[2] and turn[1] or -1 - turn[1], name, n + 2
  end
  moved[lane] = {}
  call_in_parts('ZADD', turns_key(lane), scores)
end

function t.end_turn(lane, name)
  moved[lane][name], turns[lane][name] = nil, false
  call('ZREM', turns_key(lane), name)
end

-- The tenants in turn that were charged least, behind the first `from`: names and tokens by turns, as text.
function t.lowest(lane, most, from)
  if next(moved[lane]) then write_turns(lane) end
  return call('ZRANGEBYSCORE', turns_key(lane), 0, 'inf', 'WITHSCORES', 'LIMIT', from or 0, most)
end

-- The least tokens of those in turn; nil for nobody.
function t.least(lane)
  if not least[lane] then least[lane] = tonumber(t.lowest(lane, 1)[2] or nil) end
  return least[lane]
end
