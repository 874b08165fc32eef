-- @include come_back
-- Ends late requests, for expire.lua: the parts of a lane, each up to its bounds.
local TENANTS = 100   -- most to examine at once
local now, looked_at, most = now_ms(), tonumber(ARGV[2]), tonumber(ARGV[3])
local ended, cut, bytes, endings, left = 0, 0, 0, 0, 0   -- the last three: of a part, and how many more it may examine
local o   -- the order; false where nothing has a label
local behind = string.format('%.0f', now + 1)

-- A rank from the default deadline is not a deadline. The id alone shows it: a long backlog is full of such entries,
-- and reading all of them would hold up the server.
local function ranks_by_patience(lane, id, rank) return enqueued_ms(lane, id) + cfg.patience_ms == tonumber(rank) end

-- True if the entry has another rank from now on, or waits no more.
local function end_if_late(lane, key, member, rank)
  local id = decode_id(string.match(member, '^%S*'))
  if not id then return call('ZREM', key, member) end
  if ranks_by_patience(lane, id, rank) then return false end
  local fields = fetch_fields(lane, id)
  if not fields then return false end   -- removed by hand: the pull that picks it counts it
  local size, late = end_unfit(lane, id, fields)
  bytes, ended, endings = bytes + size, ended + (late and 1 or 0), endings + (late and 1 or 0)
  local _, deadline = skim_entry(lane, id, fields)
  if not late and (not deadline or deadline <= now) then return false end
  -- @guard hooks: an expired request waits no more
  local waited = HOOKS.left(lane, id, fields)
  -- It went ahead as a turn of a program, and goes by its deadline from now on.
  -- @guard program: a turn that has waited long goes by its own deadline
  if waited and not late then make_ready(lane, id, fields) end
  return true
end

-- True once a part has examined or ended as many as it may.
local function is_spent() return left <= 0 or bytes >= cfg.copied_bytes or endings >= most end

-- Ends what is late in a set, by rank. Returns the rank at which to go on, nothing at the end. If all that was looked at has one
-- rank and nothing changed, it goes on behind that rank, and the rest is left to the pull.
local function end_late_in(lane, key, rank, last)
  if is_spent() then
    cut = 1
    return rank
  end
  local size, changed = left, false
  local rows = call_if_typed('ZRANGEBYSCORE', key, rank, last, 'WITHSCORES', 'LIMIT', 0, size) or {}
  left = left - #rows / 2
  local function cut_at(i)
    cut = 1
    -- @guard expire: many of one rank hold nothing up
    if i > 1 and rows[i + 1] == rows[2] and not changed then return string.format('%.0f', rows[2] + 1) end
    return rows[i + 1]
  end
  for i = 1, #rows, 2 do
    if bytes >= cfg.copied_bytes or endings >= most then return cut_at(i) end
    changed = end_if_late(lane, key, rows[i], rows[i + 1]) or changed
  end
  -- @guard expire: a backlog without deadlines hides none
  if #rows == 2 * size then return cut_at(#rows - 1) end
end

-- Ends what is late in `held`, and of homes without a tenant: a pass through all of these sets from `since` on.
local function end_late_of_homes(lane, place)
  local since, last, at, rank = string.match(place or '-inf', '^(%S+) ?(%S*) ?(%S*) ?(%S*)$')
  last, at = tonumber(last) or now, tonumber(at) or 0
  local homes_late = {0}
  for _, home in ipairs(call_if_typed('ZRANGEBYSCORE', o.key(lane, ':firsts'), '-inf', last) or {}) do
    homes_late[#homes_late + 1] = tonumber(home)
  end
  table.sort(homes_late)
  for _, home in ipairs(homes_late) do
    local from = home == at and rank ~= '' and rank or since
    local key = home == 0 and o.key(lane, ':held') or o.key(lane, ':h:', home)
    local reached = home >= at and end_late_in(lane, key, from, last)
    if reached then return string.format('%s %.0f %d %s', since, last, home, reached) end
  end
  return string.format('%.0f', last + 1)
end

-- Ends what is late of the tenants in :past and :late. Their scores say where in their sets to go on.
local function end_late_of_tenants(lane)
  for _, kind in ipairs({':past', ':late'}) do
    local names = call_if_typed('ZRANGEBYSCORE', o.key(lane, kind), '-inf', now, 'WITHSCORES', 'LIMIT', 0, TENANTS) or {}
    for i = 1, #names, 2 do
      -- @guard expire: a call examines a bounded number of tenants' requests
      if is_spent() then cut = 1; return end
      local name, reached = names[i], math.huge
      for _, set in ipairs(name ~= '' and {':t:', ':th:'} or {}) do   -- what has no tenant is looked through by its rank
        local before = left
        left = looked_at   -- of both sets, because one rank tells where to go on in both
        reached = math.min(reached, tonumber(end_late_in(lane, o.key(lane, set, name), names[i + 1], now) or nil) or math.huge)
        left = before - (looked_at - left)
      end
      if reached < math.huge then
        call('ZADD', o.key(lane, kind), 'XX', string.format('%.0f', reached), name)
      elseif kind == ':past' then
        call('ZREM', o.key(lane, kind), name)
      elseif name ~= '' then
        call('ZADD', o.key(lane, kind), 'XX', behind, name)
      end
    end
    if #names == 2 * TENANTS then cut = 1 end
  end
end

local function in_bounds(look, ...)
  -- @guard expire: each part has bounds of its own
  bytes, endings, left = 0, 0, looked_at
  return look(...)
end
