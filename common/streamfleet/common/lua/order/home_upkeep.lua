-- @include home_waits
-- Affinity: homes that are lost. What waits for them becomes anybody's, a bounded part in each call.
local PART = 200
local room = 4 * PART   -- number of requests that may still become anybody's in this call

-- A worker is no home any more. What waits for it becomes anybody's, some here and the rest at the next calls; once nothing is
-- left, its load and its state are deleted.
function h.lose(number)
  local left = false
  h.set_work(number, LOST)
  for lane = 1, order() and LANE_COUNT or 0 do
    h.spilled = h.spilled or h.has_waiting(lane, number) and lane
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

-- A worker has gone.
function h.retire(worker)
  local number = h.number(worker)
  if not number then return end
  if h.work_of(number) then h.lose(number) end
  call('HDEL', SESSIONS, 'n|' .. worker)
  if h.spilled then wake(h.spilled) end
end

-- The caller has found that a home is lost, by this state of it.
function h.lose_silent(number, state)
  -- @guard affinity: who has asked meanwhile stays a home
  if (call('HGET', SESSIONS, 'w|' .. number) or '') ~= state then return end
  h.lose(number)
end

-- The caller has found so many fields in SESSIONS, none of a session: nothing is asked any more.
function h.end_homing(fields)
  for lane = 1, order() and LANE_COUNT or 0 do
    if order().counts[lane].b + order().counts[lane].h > 0 then return end
  end
  -- @guard affinity: a session that has come meanwhile stays
  if call('HLEN', SESSIONS) ~= fields then return end
  call('HDEL', LANES, 'sessions')
  call('UNLINK', SESSIONS, LOADS)
end
