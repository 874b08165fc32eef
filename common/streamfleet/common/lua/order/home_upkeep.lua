-- @include home_waits
-- Affinity: the housekeeping's part, a bounded part in each call. What waits for a worker that asks for nothing is
-- anybody's; what was left over, and what nobody has used for long, is forgotten.
local PART, GONE_MS, UNUSED_MS = 200, 60000, 3600000
local room = 4 * PART   -- number of requests that may still become anybody's in this call

-- A worker is no home any more. What waits for it becomes anybody's, some here and the rest at the next calls.
function h.lose(number)
  h.set_work(number, LOST)
  return h.spill(number)
end

-- Frees what waits for a lost home, a part in each call. Once nothing is left, its load and its state are deleted.
function h.spill(number)
  local left = false
  for lane = 1, order() and LANE_COUNT or 0 do
    h.spilled = h.spilled or h.has_waiting(lane, number)
    if room <= 0 then
      left = left or h.has_waiting(lane, number)
    else
      -- @guard affinity: what waits for who is lost is anybody's
      local freed, more = order().free(lane, number, math.min(PART, room))
      room, left = room - freed, left or more
    end
  end
  if not left then
    call_if_typed('ZREM', LOADS, number)
    call('HDEL', SESSIONS, 'w|' .. number)
  end
end

-- True if something has waited for long for a worker that has asked for nothing for long.
local function waits_too_long(number, seen)
  if h.until_long_ago(seen) > 0 then return false end
  for lane = 1, order() and LANE_COUNT or 0 do
    for _, kind in ipairs({':h:', ':ht:'}) do
      for _, member in ipairs(call('ZRANGE', order().key(lane, kind, number), 0, 15)) do
        local id = decode_id(string.match(member, '^%S+'))
        if not id or h.until_long_ago(enqueued_ms(lane, id)) == 0 then return true end
      end
    end
  end
end

local function check_homes()
  local rows = call_if_typed('ZRANGE', LOADS, 0, -1, 'WITHSCORES') or {}
  for i = 1, #rows, 2 do
    local number = tonumber(rows[i])
    local seen = tonumber(string.match(call('HGET', SESSIONS, 'w|' .. rows[i]) or '', '^%d+') or 0)
    if not number then   -- added by hand
      call('ZREM', LOADS, rows[i])
    elseif tonumber(rows[i + 1]) >= LOST then
      h.spill(number)
    -- @guard affinity: a worker that asks for nothing loses what waits for it
    elseif waits_too_long(number, seen) then
      h.lose(number)
    elseif h.until_long_ago(seen, GONE_MS) == 0 then
      h.lose(number)
    end
  end
  return #rows
end

-- Once no session is known and nothing has a home, nothing is asked any more.
local function end_homing()
  local left = call('HGETALL', SESSIONS)
  for i = 1, #left, 2 do
    local kind = string.sub(left[i], 1, 1)
    if kind == 's' or kind == 'p' or kind == 'f' then return end
  end
  -- @guard affinity: without sessions nothing is asked
  call('HDEL', LANES, 'sessions')
  for i = 1, #left, 2 do call('HDEL', SESSIONS, left[i]) end
  for _, number in ipairs(call_if_typed('ZRANGE', LOADS, 0, -1) or {}) do call('ZREM', LOADS, number) end
end

-- A worker has gone.
function h.retire(worker)
  local number = h.number(worker)
  if not number then return end
  if h.work_of(number) then h.lose(number) end
  call('HDEL', SESSIONS, 'n|' .. worker)
  if h.spilled then wake() end
end

function h.tidy()
  local known = call('HLEN', SESSIONS)
  -- @guard affinity: sessions that nobody uses are forgotten
  h.forget(20, now_ms(), now_ms() - UNUSED_MS)
  local numbers = check_homes()
  if h.spilled then wake() end
  local waits = false
  for lane = 1, order() and LANE_COUNT or 0 do waits = waits or order().counts[lane].b + order().counts[lane].h > 0 end
  if known <= 3 * numbers + 100 and not waits then end_homing() end
end
