-- @include watch
-- Last part of a pull: how the worker waits if it got too little, and who is woken for the rest.

-- True if one waits that is emptier by a step than a worker with this score, behind so many that watch.
local function emptier_waits(own, watching)
  local first = call('ZRANGE', WAITING, 0, watching, 'WITHSCORES')
  for i = 1, #first, 2 do
    if first[i + 1] + STEP <= own and not watches(first[i]) then return true end
  end
end

-- `waiting`: what is left in each lane; `got`: number of claims; `again`: true if it pulls again at once; `moved`: true if anything
-- changed; `calm`: true if nothing waits, taken or not. Returns the role.
local function assign_role(arg, waiting, got, again, moved, calm)
  local open, lanes_open, left = 0, 0, nil
  for lane = 1, LANE_COUNT do
    if got < arg.rooms[lane] then open, lanes_open = open + waiting[lane], lanes_open + 1 end
    if waiting[lane] > 0 then left = left or lane end
  end
  local waits = got < arg.n and open == 0 and not again
  local own = (LANE_COUNT - lanes_open) * NO_ROOM + (got < arg.free and 0 or NO_SLOT) + arg.held + got
  local watching, fuller, bound = who_watches(waits and own or math.huge)
  -- The emptiest watch: one that is emptier by a step takes the place of another when that one pulls.
  local to_watch = waits and own < bound and watching < cfg.watchers and not emptier_waits(own, watching)
  if to_watch then
    watching, bound = watching + 1, level_end(own)
    for _, name in ipairs(fuller) do
      -- @guard roles: who has less room makes way at once, so that a full worker never wins against an idle one
      call('ZREM', WATCH, name)
      wake_watcher()
    end
  else
    watching = watching + #fuller
  end
  -- Never leave work, or a free watch, behind without a wake-up.
  local woken = left and (moved or arg.owing) and wake(left)
  -- @guard pull: a free watch is handed on
  if not woken and watching < cfg.watchers then hand_watch(bound, calm) end
  if not waits then return 0 end
  call('ZADD', WAITING, own, arg.worker)   -- behind the wake-ups, which are for others
  if to_watch then
    call('ZADD', WATCH, now_ms() + arg.watch_ms, arg.worker)
    return 1
  end
  -- @guard roles: what was said before this pull counts no more
  call('DEL', KEYS[SHARED + 2])
  return 2
end
