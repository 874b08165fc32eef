-- @include keys
-- Wakes idle workers: watchers block on the wake stream (and the lanes), idle waiters on the bench list.
local function leave_token()
  if call('LLEN', BENCH) == 0 then call('RPUSH', BENCH, '1') end
end

local function wake_watcher() tell(WAKE, 'MAXLEN', 1, '*', 't', '1') end

local function wake()
  -- @guard wake: watchers too
  wake_watcher()
  -- @guard wake: idle waiters too
  leave_token()
end
