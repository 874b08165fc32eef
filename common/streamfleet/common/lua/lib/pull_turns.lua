-- @include come_back
-- The turn of a request: all that a pull asks the policies of the order, beside the hooks. Without an answer the lane goes by rank.
local TURNS, made_judging = {}, nil

-- True while a request waits for another worker than this one, which can go on with it without reading it again.
local function waits_for_another(lane, id, worker)
  local ms, home = string.match(interruptions(lane, id), ' (%d+) (%S+)$')
  return home and home ~= worker and tonumber(ms) > now_ms()
end

-- @policy tenants tenant_pick
-- @policy judging

-- The worker that pulls is known as a home from now on.
function TURNS.meet(arg)
  local at_home = arg.start and homing()
  if at_home and not at_home.mine then at_home.arrive(arg.start) end
end

-- Sets `waiting` to what this worker may take now. Returns how many requests wait for it alone.
function TURNS.see(waiting, arg)
  local at_home = homing()
  if not at_home then return 0 end
  at_home.see(waiting, arg)
  return at_home.own()
end

-- Takes up to `wanted` entries out of a lane's ready set. Returns their stream ids; nothing if the lane goes by rank.
function TURNS.pop(lane, wanted, worker)
  local shared, at_home = sharing(), homing()
  if shared then
    if not shared.pop then make_tenant_pick()(shared) end
    if next(shared.ranks) then shared.picks, shared.ranks = {}, {} end
  end
  if at_home then return at_home.pop(lane, wanted, worker) end
  return shared and shared.pop(lane, wanted, worker)
end

-- Stream id of the first of a lane that is passed over; nothing if none is.
function TURNS.passed_over(lane)
  local at_home = homing()
  return at_home and at_home.passed_over(lane)
end

-- That entry was just taken. Returns the time for which it was passed over, ms, as text.
function TURNS.passed(lane) return homes().passed(lane) end

-- At the end of a pull: sets `waiting` to what makes it worth to wake somebody, or to pull again. Returns how many may be taken
-- in all, and after how many ms more may be taken, or nil.
function TURNS.left(waiting, arg, got)
  local at_home = homing()
  if at_home then return at_home.left(waiting, arg, got) end
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
