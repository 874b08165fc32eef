-- @include filling
-- @include wake
-- Even filling: how many a worker takes, which one watches, and which one is woken.
function FILLING.emptiest()
  local row = call('ZRANGEBYSCORE', WATCH, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, 1)
  return row[1], row[1] and row[2] + FILLING.base
end

-- Number of requests to take at once: as many as there is room for, but not many more than the emptiest would hold that
-- waits. At least one: that worker may be dead.
function FILLING.wanted(arg)
  if not arg.start or arg.n == 1 then return arg.n end
  local _, least = FILLING.emptiest()
  local watchers = call('ZRANGEBYSCORE', WATCH, now_ms(), '+inf', 'WITHSCORES')
  for i = 2, #watchers, 2 do
    local held = watchers[i] % 1 / FILLING.part
    least = math.min(least or held, held)
  end
  return least and math.max(1, math.min(arg.n, least + FILLING.step - arg.held)) or arg.n
end

-- True if an idle waiter is to watch in place of this worker, which has taken so many.
function FILLING.makes_way(arg, got)
  local other, held = FILLING.emptiest()
  return other and arg.start and held + FILLING.step <= arg.held + got
end

-- The worker watches for so long, ms. `held`: requests that it has.
function FILLING.watch(worker, held, life)
  call('ZADD', WATCH, now_ms() + life + math.min(held, 4095) * FILLING.part, worker)
end

-- The worker becomes an idle waiter. One without a cache is not known.
function FILLING.wait(arg, got)
  if arg.start then call('ZADD', WATCH, arg.held + got - FILLING.base, arg.worker) end
end

-- Wakes the emptiest idle waiter; the one that waits for longest if that one does not come, or none is known. With
-- `to_watch` there is nothing to pull, and so it watches at once: for a short time, because it may be dead. The token says
-- when, so that a worker which has pulled since does not take it for more than a wake-up.
function FILLING.wake(to_watch)
  local other, held = FILLING.emptiest()
  if to_watch and other and wake_alone(other, string.format('watch %.0f', now_ms())) then
    return FILLING.watch(other, held, 1500)
  end
  -- @guard filling: who was woken counts as having taken its part
  if other then call('ZADD', WATCH, 'XX', 'INCR', FILLING.step, other) end
  if not (other and wake_alone(other, '1')) then leave_token() end
end
