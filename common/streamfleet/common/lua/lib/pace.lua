-- @include keys
-- Pace of a queue, and the time until a waiting request is taken. The housekeeping measures it once a second
-- (pace_measure.lua); everybody who tells or judges a time reads it. SCHED's field `pace` is JSON:
--   at: time of the last look; gone: number of requests that had left the ready sets for good by then; read: of each lane,
--   how many entries had come; busy: true if something waited; took, ms, and left: the time in which something waited, and
--   how many requests left in it; span, ms, and came: all the time, and how many came into each lane; run, ms: mean time
--   of a run. All but the first four fade.
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

-- Returns a function of a lane and the number of its requests that go first: ms until the next one is taken, and of its
-- run; nil if nobody can tell. In that time, what waits in more urgent lanes goes first, and what still comes into them;
-- less urgent lanes take the shares that they are guaranteed; and no lane gets less than its own share.
local function expectations()
  local pace, waiting, paused = read_pace(), unpaused()
  -- @guard pace: without workers there is none
  if pace and math.abs(now_ms() - pace.at) > STALE_MS then pace = nil end
  if not pace or pace.took < 1000 then return function() return nil end end
  local rate = math.max(pace.left, 1) / pace.took
  return function(lane, first)
    -- @guard pace: nobody knows how long a lane is paused
    if paused[lane] then return nil end
    local before, coming, others = first + 1, 0, 0
    for other = 1, LANE_COUNT do
      if other < lane then
        before, coming = before + waiting[other], coming + (paused[other] and 0 or pace.came[other] / math.max(1, pace.span))
      elseif other > lane and waiting[other] > 0 then
        others = others + cfg.shares[other]
      end
    end
    local speed, share = rate * (1000 - others) / 1000 - coming, rate * cfg.shares[lane] / 1000
    local ms = speed > 0 and before / speed or FOR_EVER_MS
    if share > 0 then ms = math.min(ms, (first + 1) / share) end
    return math.min(FOR_EVER_MS, ms), pace.run or 0
  end
end
