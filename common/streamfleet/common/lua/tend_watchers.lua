-- @include wake
-- Replace the watch, or the wake-up, of a worker that died with it: say again that work is ready, and have an idle waiter
-- take a free watch.
-- KEYS: shared. ARGV: 1 configuration. Returns nothing.
local MOST_WATCH_MS = 120000
local waiting = require_types()
open_for_writes()
local now, ready = now_ms(), 0
for lane = 1, LANE_COUNT do ready = ready + waiting[lane] end
-- @guard tend_watchers: work is said again
if ready > 0 then
  wake()
  -- @guard tend_watchers: a stand-by is told too, where the only listener died
  leave_standby_token()
end
-- @guard tend_watchers: dead watchers are struck off
call('ZREMRANGEBYSCORE', WATCH, 0, now)   -- below zero: idle waiters
-- Times further ahead are from before the clock was set back.
-- @guard tend_watchers: watches of a clock that was set back end
call('ZREMRANGEBYSCORE', WATCH, '(' .. now + MOST_WATCH_MS, '+inf')
-- @guard tend_watchers: dead watchers are replaced
if call('ZCOUNT', WATCH, now, '+inf') < cfg.watchers then leave_token() end
