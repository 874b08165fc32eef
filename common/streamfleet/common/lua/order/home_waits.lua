-- @include home_records
-- Affinity: workers as homes, and how they are woken for what comes to them. The sets of what waits are in order.lua.
local caller, started = ARGV[2] or '', nil   -- the worker that calls, if one does; its number and its start, as text
local woken = {}   -- homes that got something
h.mine = false     -- number of the worker that pulls, if it is a home

-- A session is there.
function h.begin()
  if some_sessions == HOMING then return end
  some_sessions = HOMING
  call('HSET', LANES, 'sessions', HOMING)
end

-- A worker's number; nil for one that is no home.
function h.number(name) return tonumber(string.match(call('HGET', SESSIONS, 'n|' .. name) or '', '^%d+')) end

-- True if something in the lane waits for this home.
function h.has_waiting(lane, number)
  if not order() then return false end
  order().write()
  return call('EXISTS', order().key(lane, ':h:', number), order().key(lane, ':ht:', number)) > 0
end

-- The home of an entry that becomes ready; nil if it waits for nobody.
function h.find(lane, fields)
  local number = h.home_for(lane, fields)
  if not number then return nil end
  h.begin()
  h.add_work(number, 1)
  woken[number] = true
  return number
end

-- The worker that pulls. A new start of it gets a new number.
function h.arrive(start)
  started = call('HGET', SESSIONS, 'n|' .. caller)
  local number, since = string.match(started or '', '^(%d+) (.*)$')
  -- @guard affinity: a worker that comes back is new
  if number and since == start then
    h.mine = tonumber(number)
  else
    if number and h.work_of(tonumber(number)) then h.lose(tonumber(number)) end
    h.mine = call('HINCRBY', SESSIONS, '#', 1)
    call('HSET', SESSIONS, 'n|' .. caller, string.format('%.0f %s', h.mine, start))
  end
end

-- Number of requests that wait for this worker alone, in all lanes or in one.
function h.own(only)
  local number = 0
  if order() then order().write() end
  for lane = only or 1, h.mine and order() and (only or LANE_COUNT) or 0 do
    local c = order().counts[lane]
    if c.h > 0 then number = number + call('ZCARD', order().key(lane, ':h:', h.mine)) end
    if c.b > 0 then number = number + call('ZCARD', order().key(lane, ':ht:', h.mine)) end
  end
  return number
end

-- Wakes the homes that got something, if they wait for work, once: until its next pull, such a home does not wait.
local function wake_homes()
  for number in pairs(woken) do
    local worker = number ~= h.mine and string.match(call('HGET', SESSIONS, 'w|' .. number) or '', '^%d+ (.*)$')
    -- @guard affinity: a home is woken for what comes to it
    if worker and call('ZREM', WAITING, worker) == 1 then rouse(worker, '1') end
  end
  woken = {}
end

-- A watcher was woken and found nothing: perhaps the wake-up was another watcher's, which waits no more. It is passed on once.
local function pass_on()
  for _, other in ipairs(call('ZRANGEBYSCORE', WATCH, now_ms(), '+inf')) do
    if other ~= caller and not call('ZSCORE', WAITING, other) then
      call('ZREM', WATCH, other)
      -- @guard affinity: a wake-up reaches the watcher that it was for
      return wake_watcher()
    end
  end
end

-- A pull has ended; `role`: how its worker waits.
function h.done(arg, role, got)
  if not (arg.start and h.mine) then return end
  h.set_work(h.mine, arg.held + got + h.own())
  call('HSET', SESSIONS, 'w|' .. h.mine, string.format('%.0f %s', now_ms(), arg.worker))
  if role == 1 and got == 0 then pass_on() end
end

-- Everything that has changed is written, and who got something is woken. Each script does this once, at its end.
function h.flush()
  h.write_records()
  if next(woken) then wake_homes() end
end
