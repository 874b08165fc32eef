-- @include pace
-- Measures the pace. An arrival is counted where it is read from its lane's stream, which Redis 6.2 does not count: there,
-- as with access rules of an earlier release, times do not know of more urgent requests that are still to come.
local FADE_MS, LONGEST_FADE_MS, FADE_REQUESTS, ARRIVALS_FADE_MS = 10000, 120000, 100, 30000
local MOST_TENANTS, MOST_ROWS = 4000, 64

local function came_into(lane)
  if redis.acl_check_cmd and not redis.acl_check_cmd('XINFO', 'GROUPS', lane_key(lane)) then return 0 end
  local groups = redis.pcall('XINFO', 'GROUPS', lane_key(lane))
  for _, group in ipairs(groups.err and {} or groups) do   -- the key may be missing
    if named(group, 'name') == GROUP then return tonumber(named(group, 'entries-read') or nil) or 0 end
  end
  return 0
end

-- A look at the queue: as `pace`, without what fades; and the number of requests that run.
local function look()
  local waiting, running = unpaused(), 0
  local gone = (tonumber(call('HGET', COUNTS, 'staged') or nil) or 0) - call('ZCARD', DELAYED)
  local now = {at = now_ms(), busy = false, read = {}}
  for lane = 1, LANE_COUNT do
    gone, now.busy, now.read[lane] = gone - call('ZCARD', ready_key(lane)), now.busy or waiting[lane] > 0, came_into(lane)
    running = running + (tonumber(redis.pcall('XPENDING', lane_key(lane), GROUP)[1] or nil) or 0)   -- its group may be missing
  end
  now.gone = gone
  return now, running
end

-- The turns of a lane's tenants, for those who tell times; nil unless tenants share it.
local function look_at_turns(lane)
  local t = sharing()
  if not t or not t.shares(lane, true) then return nil end
  local waiting, rows = t.lowest(lane, MOST_TENANTS), {}
  local number, picked = math.min(#waiting / 2, MOST_ROWS), {}
  for i = 1, number do
    local at = 2 * math.floor((i - 1) * #waiting / 2 / number)
    picked[i], rows[i] = waiting[at + 1], {t.hash(waiting[at + 1]), tonumber(waiting[at + 2])}
  end
  t.fetch_records(picked)
  for i, name in ipairs(picked) do
    rows[i][3], rows[i][4] = t.usual(lane, name, math.max(1, math.min(16, math.floor(2 * MOST_ROWS / number)))), t.number(lane, name)
    if name == '' and t.bare(lane) then
      rows[i][4] = rows[i][4] + math.max(0, call('ZCARD', ready_key(lane)) - call('ZLEXCOUNT', WAITING, '[' .. lane, '(' .. lane + 1))
    end
  end
  return {each = #waiting / 2 / math.max(1, number), rows = rows}
end

local function measure_pace()
  local before, now, running = read_pace(), look()
  now.took, now.left, now.span, now.came, now.run = 0, 0, 0, {}, 0
  local passed = before and now.at - before.at or 0
  -- @guard pace: no step of a clock counts, and no time in which nobody looked
  if passed < 0 or passed > STALE_MS then passed, before = 0, nil end
  local rate = before and before.took > 0 and before.left / before.took or 1
  local fade = math.exp(-passed / math.min(LONGEST_FADE_MS, math.max(FADE_MS, FADE_REQUESTS / math.max(rate, 1e-6))))
  local slowly = math.exp(-passed / ARRIVALS_FADE_MS)
  for lane = 1, LANE_COUNT do
    local more = before and math.max(0, now.read[lane] - (before.read[lane] or 0)) or 0
    now.came[lane] = before and (before.came[lane] or 0) * slowly + more or 0
  end
  if before then
    now.took, now.left, now.span, now.run = before.took, before.left, before.span * slowly + passed, before.run or 0
    -- An idle fleet does not show how fast it is.
    if now.busy and before.busy then
      now.took, now.left = before.took * fade + passed, before.left * fade + math.max(0, now.gone - before.gone)
      local run = running * now.took / math.max(1, now.left)
      now.run = now.run > 0 and now.run + (1 - fade) * (run - now.run) or run
    end
  end
  now.turns = {}
  for lane = 1, LANE_COUNT do now.turns[LANE_NAMES[lane]] = look_at_turns(lane) end
  call('HSET', SCHED, 'pace', cjson.encode(now))
end
