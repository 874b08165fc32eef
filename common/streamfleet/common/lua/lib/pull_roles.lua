-- @include pull_filling
-- Last part of a pull: how the worker waits if it got too little, and who is woken for the rest.

-- Listeners have seats, as many as there may be watchers: fields of LISTENERS, '<end of the time, epoch ms> <number of lanes
-- for which it has a free slot> <worker>'. Gives up the worker's own seat. `kind`: its own number of such lanes. Returns
-- how many seats other workers have; how many of these workers have as many lanes, or the number of all seats if one has
-- more; the name of the seat to take: that of a worker with fewer, else an empty one, else nil; and the number that its own
-- seat had. A seat of fewer comes first because its worker may be dead: while it is taken, each listener with more wakes
-- somebody to make way, in vain.
local function leave_seat(worker, now, kind)
  local LISTENERS = KEYS[SHARED + 2]
  local names, taken, free, empty, full, before = {}, 0, 0, nil, nil, 0
  for seat = 1, cfg.watchers do names[seat] = DIGITS[seat] or seat end
  local held = call_if_typed('HMGET', LISTENERS, unpack(names)) or {}
  for seat = 1, cfg.watchers do
    local till, lanes_free, who = string.match(held[seat] or '', '^(%d+) (%d) (.*)$')
    if till and who ~= worker and tonumber(till) > now then
      taken = taken + 1
      local more = tonumber(lanes_free) - kind
      if more < 0 then full = names[seat] else free = more > 0 and cfg.watchers or free + 1 end
    else
      -- @guard roles: a seat that is given up is free
      if who == worker then call('HDEL', LISTENERS, names[seat]) end
      before = who == worker and tonumber(lanes_free) or before
      empty = names[seat]
    end
  end
  return taken, free, full or empty, before
end

-- `waiting`: what is left in each lane, `ready` in all; `got`: number of claims; `cut`: the lane that was not staged to its
-- end; `moved`: true if anything changed; `arg.calm`: true if nothing waits, taken or not. Returns the role.
local function assign_role(arg, waiting, ready, got, cut, moved, now)
  local LISTENERS = KEYS[SHARED + 2]
  local role, watching, listening, free, seat = 0, call('ZCOUNT', WATCH, now, '+inf'), 0, 0, nil
  local open, urgent, kind, before = 0, 0, 0, 0
  for lane = 1, LANE_COUNT do
    if got < arg.rooms[lane] then open = open + waiting[lane] end
    if got < math.min(arg.rooms[lane], arg.free) then kind = kind + 1 end
    -- A lane before the last one has room where the last one has none. Who was woken for it tells the next one; a worker
    -- that is full of it does not: so full workers do not wake each other at each end of a request.
    if lane < arg.patient or lane < LANE_COUNT and arg.hints[1] then urgent = urgent + waiting[lane] end
  end
  local mixed = arg.patient <= LANE_COUNT   -- otherwise nobody listens, and nothing needs to be read
  if mixed then listening, free, seat, before = leave_seat(arg.worker, now, kind) end
  if got < arg.n and open == 0 and not (cut and got < arg.rooms[cut]) then
    if got < arg.rooms[LANE_COUNT] then
      local watches = watching < cfg.watchers
      -- @guard filling: the emptiest watches
      if FILLING.makes_way(arg, got) then watches = false end
      if watches then
        FILLING.watch(arg.worker, arg.held + got, arg.watch_ms)
        role, watching = 1, watching + 1
      else
        FILLING.wait(arg, got)
        role = 2
      end
    -- Nobody listens where somebody watches: a full worker must not win against an idle one.
    -- Nor does a worker that would have to interrupt one, where others have a free slot.
    elseif watching == 0 and (listening == 0 or kind > 0 and free < cfg.watchers) then
      call_if_typed('HSET', LISTENERS, seat, string.format('%.0f %d %s', now + arg.watch_ms, kind, arg.worker))
      -- @guard roles: a listener without a free slot makes way for one that has one
      if kind > 0 and listening > free then wake_watcher() end
      role, listening = 3, listening + 1
    else
      role = 4
    end
  end
  -- Never leave work, or a free watch, behind without a token. A worker that has no room for what it leaves behind
  -- passes a wake-up on only if it took something, or has no room at all: otherwise full workers would wake each other
  -- for it without an end.
  local owing = moved or arg.owing
  local passes_on = urgent > 0 and (moved or arg.owing and arg.n == 0)
  -- @guard pull: a watcher woken for work left behind
  if ready > 0 and owing and watching > 0 or passes_on and listening > 0 then wake_watcher() end
  if (ready > 0 and owing) or watching < cfg.watchers then
    -- A worker that watches without a pull could wake nobody for a second free watch.
    FILLING.wake(arg.calm and watching + 1 == cfg.watchers)
  end
  -- @guard roles: somebody else with room for urgent work takes over
  if mixed and (passes_on or watching + listening == 0 or kind < before) then leave_standby_token() end
  return role
end
