-- @include keys
-- Even filling: of the workers that wait for work, the one that holds the fewest requests comes first, and a worker takes
-- few at a time while such a one has more room. WATCH tells what they hold: a watcher's score is the end of its watch, ms, and
-- requests * part; an idle waiter's is requests - base, below those of all watchers.
-- step: requests that a worker may hold beyond the emptiest before it leaves work to it.
local FILLING = {base = 1000000, part = 1 / 4096, step = 2}

-- A worker has ended requests, perhaps while it waits.
function FILLING.ended(worker, number)
  local score = tonumber(call_if_typed('ZSCORE', WATCH, worker) or nil)
  if not score then return end
  local held = score < 0 and score + FILLING.base or score % 1
  local fewer = math.min(held, score < 0 and number or number * FILLING.part)
  -- @guard filling: what has ended is not held any more
  call('ZADD', WATCH, score - fewer, worker)
end
