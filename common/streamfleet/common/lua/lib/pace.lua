-- @include tenants
-- Pace of a queue, and the time until a waiting request is taken. The housekeeping measures it once a second
-- (pace_measure.lua); everybody who tells or judges a time reads it. SCHED's field `pace` is JSON:
--   at: time of the last look; gone: number of requests that had left the ready sets for good by then; read: of each lane,
--   how many entries had come; busy: true if something waited; took, ms, and left: the time in which something waited, and
--   how many requests left in it; span, ms, and came: all the time, and how many came into each lane; run, ms: mean time
--   of a run. All but the first four fade. turns: of each lane that tenants share, the number of tenants for which each
--   row stands, and rows of up to MOST_ROWS of those that wait, in order of their turns: a hash of the name, tokens for
--   its weight, the tokens for its weight of a usual request, and the number of its requests. A hash, because producers read it, and
--   need not know each other's tenants.
local STALE_MS, FOR_EVER_MS = 10000, 86400000

local function read_pace()
  local ok, pace = pcall(cjson.decode, call('HGET', SCHED, 'pace') or '')
  return ok and type(pace) == 'table' and type(pace.came) == 'table' and pace or nil
end

-- Numbers of ready requests in lanes that are not paused, 0 for the others; and which are paused.
local function unpaused()
  local found, waiting, paused = call('HMGET', SCHED, lane_fields('paused:,')), {}, {}
  for lane = 1, LANE_COUNT do
    paused[lane] = found[lane] ~= false
    waiting[lane] = paused[lane] and 0 or call('ZCARD', ready_key(lane))
  end
  return waiting, paused
end

-- Returns a function of a lane and the number of its requests that go first by deadline: number of those that go first,
-- ms until it is taken, and of its run; no times if nobody can tell. In that time, what waits in more urgent lanes goes first,
-- and what still comes into them; less urgent lanes take the shares that they are guaranteed; and no lane gets less than
-- its own share. `tenant`: its tenant, '' for none, nil where it is not known; `own`: a function that returns the number of
-- the tenant's that go first.
local function expectations()
  local pace, waiting, paused = read_pace(), unpaused()
  -- @guard pace: without workers there is none
  if pace and math.abs(now_ms() - pace.at) > STALE_MS then pace = nil end
  -- Number of requests of a lane that go before the next of a tenant that has `own` before it, by the tenants' turns. `turns`:
  -- of the pace.
  local function before_in_turns(t, turns, lane, tenant, own)
    local name, rows = t.name(tenant), turns.rows
    local record, hash, usual, sum = t.record(name), t.hash(name), nil, own
    local reached = tonumber(t.get(t.level_field(lane)) or nil) or 0
    for _, row in ipairs(rows) do if row[1] == hash then usual = row[3] end end
    usual = usual or (t.cost(record)) / record.weight
    local tokens, waits = t.turn(lane, name)
    -- @guard turns: who comes back starts below the others
    if not waits then tokens = math.max(tokens or 0, math.max(rows[1] and rows[1][2] or 0, reached) - usual) end
    local last = tokens + own * usual
    for _, row in ipairs(rows) do
      local at = math.max(row[2], math.min(reached, last))   -- what it was charged since
      if row[1] ~= hash and at < last then
        local left = row[4] - (at - row[2]) / row[3]
        -- @guard turns: a tenant has no more turns than requests
        sum = sum + turns.each * math.max(0, math.min(left, math.ceil((last - at) / row[3])))
      end
    end
    -- @guard turns: of those that may run at once, one has to end first
    local blocked = record.most < math.huge and math.max(0, own + 1 + record.running - record.most) / record.most or 0
    return math.floor(sum + 0.5), blocked
  end

  local function in_turns(lane, first, tenant, own)
    local turns = tenant and pace and type(pace.turns) == 'table' and pace.turns[LANE_NAMES[lane]]
    local t = turns and sharing()
    if not t then return first, 0 end
    local place, blocked = before_in_turns(t, turns, lane, tenant, own(t, t.name(tenant)))
    return math.min(place, math.max(first, waiting[lane])), blocked
  end
  return function(lane, first, tenant, own)
    local place, blocked = in_turns(lane, first, tenant, own)
    -- @guard pace: nobody knows how long a lane is paused
    if not pace or pace.took < 1000 or paused[lane] then return place end
    local rate = math.max(pace.left, 1) / pace.took
    local before, coming, others = place + 1, 0, 0
    for other = 1, LANE_COUNT do
      if other < lane then
        before, coming = before + waiting[other], coming + (paused[other] and 0 or pace.came[other] / math.max(1, pace.span))
      elseif other > lane and waiting[other] > 0 then
        others = others + cfg.shares[other]
      end
    end
    local speed, share, run = rate * (1000 - others) / 1000 - coming, rate * cfg.shares[lane] / 1000, pace.run or 0
    local ms = speed > 0 and before / speed or FOR_EVER_MS
    if share > 0 then ms = math.min(ms, (place + 1) / share) end
    return place, math.min(FOR_EVER_MS, math.max(ms, blocked * run)), run
  end
end
