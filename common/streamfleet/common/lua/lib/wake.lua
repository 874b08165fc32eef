-- @include keys
-- The directory of who waits. WAITING has each worker with room, by how much: a score is NO_ROOM for each lane that it has no
-- room for, NO_SLOT if it would have to interrupt a request, and the number of requests that it holds. Who has room for a lane
-- has room for each more urgent one: so if any may take a request, the first of all may, and is the emptiest. Some of them
-- watch: they block on the streams of the lanes and of wake-ups, and stand in WATCH too, by the end of their watch. Each
-- of the others blocks on a list of its own.
local NO_ROOM, NO_SLOT, STEP = 2 ^ 20, 2 ^ 19, 2   -- STEP: a worker that holds so many more than another leaves work to it

local function watches(worker) return tonumber(call('ZSCORE', WATCH, worker) or 0) >= now_ms() end

local function wake_watcher() tell(WAKE, 'MAXLEN', cfg.watchers, '*', 't', string.format('%.0f', now_ms())) end

-- Wakes a worker that waits. Its list is not declared, and an error is passed over: a cluster refuses it while its slot moves.
-- Returns false for one that has not come for an earlier token. What is said to one that watches, another one may hear.
local function rouse(worker, token)
  if watches(worker) then
    wake_watcher()
    return true
  end
  local list = cfg.prefix .. 'wake:' .. worker
  if redis.pcall('LLEN', list) ~= 0 then return false end
  redis.pcall('RPUSH', list, token)
  redis.pcall('PEXPIRE', list, 60000)
  return true
end

-- Wakes the first worker whose score is below `bound`, and returns its name. `token`: for one that does not watch; nil for any.
local function rouse_first(bound, token)
  local at = 0
  for _ = 1, 8 + cfg.watchers do
    local worker, score = unpack(call('ZRANGE', WAITING, at, at, 'WITHSCORES'))
    if not worker or tonumber(score) >= bound then return nil end
    if token and watches(worker) then
      at = at + 1
    elseif rouse(worker, token or '1') then
      -- @guard wake: who was woken counts as having taken its part
      call('ZADD', WAITING, 'XX', 'INCR', STEP, worker)
      return worker
    else
      -- @guard wake: who does not come is passed over
      call('ZREM', WAITING, worker)
    end
  end
end

-- The end of the scores of workers that have room for a lane.
local function with_room(lane) return (LANE_COUNT - lane + 1) * NO_ROOM end

-- Wakes the emptiest worker that may take a request of this lane. Returns its name; nil if there is none.
local function wake(lane) return rouse_first(with_room(lane)) end
