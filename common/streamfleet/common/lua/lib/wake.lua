-- @include keys
-- Wakes workers: watchers block on the wake stream (and the lanes), idle waiters on the bench list. Workers that have
-- room for urgent requests alone do the same: listeners on the wake stream (and the urgent lanes), the others on a list
-- of their own. Its key is not declared, and an error is passed over: a cluster refuses it while its slot moves.
local function leave_token()
  if call('LLEN', BENCH) == 0 then call('RPUSH', BENCH, '1') end
end

local function leave_standby_token()
  local key = cfg.prefix .. 'standby'
  if redis.pcall('LLEN', key) == 0 then redis.pcall('RPUSH', key, '1') end
end

local function wake_watcher() tell(WAKE, 'MAXLEN', 1, '*', 't', '1') end

-- Wakes one worker by the list that it waits at beside the common bench. The key is not declared, as that of the standby
-- list. Returns false if the worker has not come for an earlier token, or a cluster refuses the key while its slot moves.
local function wake_alone(worker, token)
  local key = cfg.prefix .. 'home:' .. worker
  if redis.pcall('LLEN', key) ~= 0 or type(redis.pcall('RPUSH', key, token)) ~= 'number' then return false end
  redis.pcall('PEXPIRE', key, 60000)
  return true
end

local function wake()
  -- @guard wake: watchers too
  wake_watcher()
  -- @guard wake: idle waiters too
  leave_token()
end
