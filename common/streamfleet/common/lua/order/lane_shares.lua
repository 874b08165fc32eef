-- @include pull_stage
-- Second part of a pull: the number of picks from each lane. Strict priority, with a guaranteed minimum share by
-- credits: each pick gives every waiting lane its share (per mille); a lane with a full credit of 1000 goes first.
-- Without a share, a lane has credit only after release.lua returned an unused pick.
-- A lane is open to the worker until it has taken as many requests, of all lanes together, as `arg.rooms` says of that
-- lane; and up to its `arg.owed`, if it has a full credit and more requests wait before it than the worker has room for.
local function best_lane(waiting, credit, arg, taken)
  local top, owed, before = nil, nil, 0
  for lane = 1, LANE_COUNT do
    if waiting[lane] > 0 then
      local open = taken < arg.rooms[lane]
      if not open and top and taken < arg.owed[lane] then open = before > arg.rooms[top] - taken and credit[lane] >= 1000 end
      if open then
        top, before = top or lane, before + waiting[lane]
        if credit[lane] >= 1000 and (not owed or credit[lane] > credit[owed]) then owed = lane end
      end
    end
  end
  return owed or top
end

local function sum(waiting)
  local total = 0
  for lane = 1, LANE_COUNT do total = total + waiting[lane] end
  return total
end

-- The only lane with waiting entries; nil if there are several, or none.
local function lane_alone(waiting)
  local alone
  for lane = 1, LANE_COUNT do
    if waiting[lane] > 0 then
      if alone then return nil end
      alone = lane
    end
  end
  return alone
end

-- Sets `waiting` to 0 for paused lanes, so that nothing is chosen from them. Returns the credits.
local function load_credit(waiting)
  local credit = {0, 0, 0, 0, 0, 0, 0, 0, 0}
  look_at_lanes()
  for lane = 1, LANE_COUNT do
    if lanes[CREDIT + lane] then credit[lane] = tonumber(lanes[CREDIT + lane]) or 0 end
    -- @guard choose: nothing of a paused lane
    if lanes[PAUSED + lane] then waiting[lane] = 0 end
  end
  return credit
end

local function save_credit(credit)
  local words
  for lane = 1, LANE_COUNT do
    if credit[lane] ~= (tonumber(lanes[CREDIT + lane] or nil) or 0) then
      words = words or {'HSET', LANES}
      words[#words + 1] = 'credit:' .. LANE_NAMES[lane]
      words[#words + 1] = credit[lane]
    end
  end
  if words then call(unpack(words)) end
end

-- Changes waiting and credit; returns picks per lane, and their number. A lane that is closed to this worker keeps what it
-- is owed, and is owed more with each pick.
local function choose(wanted, waiting, credit, shares, arg, taken)
  local picks, only = {0, 0, 0, 0, 0, 0, 0, 0, 0}, lane_alone(waiting)
  if only and shares[only] < 1000 and credit[only] <= 1000 - shares[only] then   -- its debt is paid with the first pick
    local picked = math.max(0, math.min(wanted, waiting[only], arg.rooms[only] - taken))
    for lane = 1, LANE_COUNT do if picked > 0 then credit[lane] = 0 end end
    waiting[only], picks[only] = waiting[only] - picked, picked
    return picks, picked
  end
  local before = taken
  for _ = 1, wanted do
    local chosen = best_lane(waiting, credit, arg, taken)
    if not chosen then break end
    taken = taken + 1
    for lane = 1, LANE_COUNT do
      credit[lane] = waiting[lane] > 0 and math.min(credit[lane] + shares[lane], 2000) or 0
    end
    credit[chosen] = math.max(0, credit[chosen] - 1000)
    waiting[chosen] = waiting[chosen] - 1
    picks[chosen] = picks[chosen] + 1
  end
  return picks, taken - before
end
