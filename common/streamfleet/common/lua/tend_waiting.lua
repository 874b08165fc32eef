-- @include watch
-- Replace the watch, or the wake-up, of a worker that died with it: say again that work waits, to some, and have a free watch
-- taken. A part of the workers in each call is looked at by name: one that waits and is not known is woken, within 10 s.
-- KEYS: shared. ARGV: 1 configuration; 2 worker that asks, '' for none. Returns nothing.
local MOST_WATCH_MS, UNHEARD_MS, TOLD, PARTS = 120000, 500, 8, 10
local waiting = require_types()
open_for_writes()
local now, left, paused = now_ms(), nil, call('HMGET', LANES, lane_fields('paused:,'))
for lane = LANE_COUNT, 1, -1 do left = waiting[lane] > 0 and not paused[lane] and lane or left end

local function strike_off(from, to)
  for _, name in ipairs(call('ZRANGEBYSCORE', WATCH, from, to)) do
    call('ZREM', WATCH, name)
    -- @guard tend_waiting: who is dead is not woken
    call('ZREM', WAITING, name)
  end
end

-- @guard tend_waiting: dead watchers are struck off
strike_off('-inf', now)
-- Times further ahead are from before the clock was set back.
-- @guard tend_waiting: watches of a clock that was set back end
strike_off('(' .. now + MOST_WATCH_MS, '+inf')
local said = call('XRANGE', WAKE, '-', '+', 'COUNT', 1)[1]
if said and math.abs(now - (tonumber(said[2][2]) or 0)) > UNHEARD_MS then
  local heard = call('XPENDING', WAKE, GROUP, said[1], said[1], 1)[1]   -- by one that died before it could come
  -- @guard tend_waiting: those that watch are dead if nobody has heard a wake-up
  if not heard then strike_off('-inf', '+inf') end
  call('XDEL', WAKE, said[1])
end
local watching, _, bound = who_watches(math.huge)
-- @guard tend_waiting: work is said again to those that watch
if left and watching > 0 then wake_watcher() end
-- Several are woken, because some of them may be dead too; and who asks, because it lives. The pull of one takes a free watch.
local limit = math.max(left and with_room(left) or 0, watching < cfg.watchers and bound or 0)
local first, own = call('ZRANGE', WAITING, 0, TOLD - 1, 'WITHSCORES'), call('ZSCORE', WAITING, ARGV[2])
for i = 1, #first, 2 do own = first[i] ~= ARGV[2] and own end
-- @guard tend_waiting: who asks is woken, however many have died
if own then first[#first + 1], first[#first + 2] = ARGV[2], own end
-- @guard tend_waiting: nobody is told beside one with more room, who may be on its way
limit = math.min(limit, level_end(first[2] or 0))
for i = 1, #first, 2 do
  local tells = tonumber(first[i + 1]) < limit and not watches(first[i])
  -- @guard tend_waiting: somebody else is woken
  if tells and not rouse(first[i], '1') then call('ZREM', WAITING, first[i]) end
end
local workers = call('HKEYS', WORKERS)
for i = 1 + math.floor(now / 1000) % PARTS, #workers, PARTS do
  -- @guard tend_waiting: who waits and is not known says so
  if not call('ZSCORE', WAITING, workers[i]) then rouse(workers[i], '1') end
end
