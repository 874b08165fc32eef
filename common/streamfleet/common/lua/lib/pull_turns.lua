-- @include come_back
-- Turns: all that a pull asks the policies of the order, beside the hooks. Without an answer, a lane goes by rank.
local TURNS, made_judging, made_pick, in_turn = {}, nil, nil, false   -- in_turn: the last entries were taken by made_pick
-- @policy order pick
-- @policy judging

-- The worker that pulls is known as a home from now on.
function TURNS.meet(arg)
  local at_home = arg.start and homing()
  if at_home and not at_home.mine then at_home.arrive(arg.start) end
end

-- Number of requests that wait for this worker alone.
function TURNS.own() return homing() and homes().own() or 0 end

-- Takes up to `wanted` entries out of a lane. Returns their stream ids; nothing if the lane goes by rank.
function TURNS.pop(lane, wanted, worker)
  in_turn = ordering() and order().length(lane) > 0
  if not in_turn then return nil end
  made_pick = made_pick or make_pick()
  return made_pick.pop(lane, wanted, worker)
end

-- Entries were claimed. `ids`: stream ids; `runs`: by place, the fields of those that run; the others ended, or had vanished.
function TURNS.taken(lane, ids, runs)
  local at_home = homing()
  if in_turn then made_pick.taken(lane, ids, runs) end
  for i = 1, at_home and at_home.mine and #ids or 0 do
    -- @guard affinity: who takes it is its home
    if runs[i] and not (in_turn and made_pick.home_of(i) == at_home.mine) then at_home.moved(runs[i], at_home.mine) end
  end
end

-- ms for which the entry at this place was left to another worker, as text; '' for one that waited for no other.
function TURNS.passed(lane, place) return in_turn and made_pick.passed(lane, place) or '' end

-- The end of a pull. Sets `waiting`, which is 0 in lanes where this worker finds nothing any more, to the number of requests for
-- which it is worth to wake a worker, or to pull again. `paused`: a function of a lane. Returns how many wait in lanes that are
-- not paused, without those that no tenant may run; and the ms after which more may be taken, or nil.
function TURNS.left(waiting, paused, arg, got)
  if not ordering() then return nil end
  local all, shared, at_home = 0, sharing(), got < arg.n and homing()
  order().write()
  for lane = 1, LANE_COUNT do
    local c, here = order().counts[lane], call('ZCARD', ready_key(lane))
    local length = here + order().length(lane)
    -- @guard tenants: what no tenant may run is not there to be taken
    if shared and order().shares(lane) and not shared.least(lane) and c.held == 0 then length, waiting[lane] = 0, 0 end
    if not paused(lane) then all = all + length end
    -- @guard order: what waits for a home wakes nobody else
    waiting[lane] = waiting[lane] > 0 and here + c.t + c.held + (at_home and at_home.own(lane) or 0) or 0
  end
  return all, got < arg.n and made_pick and made_pick.soonest() or nil
end

-- A pull has ended; `role`: how its worker waits.
function TURNS.done(arg, role, got)
  local at_home = homing()
  if at_home then at_home.done(arg, role, got) end
end

local function judging()
  if made_judging == nil then made_judging = make_judging() end
  return made_judging
end

-- Ends an entry that asks for it if it will likely be late; see judging.lua. Returns true if it has been ended.
function TURNS.refuses(lane, id, fields, deadline, tenant, rows)
  return judging() and made_judging.refuse(lane, id, fields, deadline, tenant, rows)
end

-- Returns the class of length of a claimed entry; '' if nothing judges it, nil if it has been ended because it cannot be in time.
function TURNS.judge(claimed, deadline, tenant, arg)
  if not judging() then return '' end
  return made_judging.judge(claimed, deadline, tenant, arg)
end
