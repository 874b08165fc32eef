-- @include hooks
-- @include info
-- Forget workers that left or died: description, place among those that wait, and consumers without pending entries (deleting one would discard its
-- pending entries, which wait for the reclaim). A consumer without a description is judged by its own idle time.
-- KEYS: shared; the hash `clock`. ARGV: 1 configuration; 2 worker that leaves, or '' to look for gone ones; 3 silence after which
--   a worker counts as gone (ms); 4 most to forget; 5 '1' to only count; 6 pause for all callers after a look that found none (ms).
-- Returns how many were forgotten.
local leaving, silent_ms, most, pause_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6] or '0')
local CLOCK, forgotten, look_only = KEYS[SHARED + 1], 0, ARGV[5] == '1'
require_groups()
local since = now_ms() - (tonumber(call('HGET', CLOCK, 'forgot')) or 0)   -- below 0 if the clock was set back
-- @guard deregister: a fleet looks for the gone now and then, not each of its workers
if since >= 0 and since < pause_ms then return 0 end
if not look_only then open_for_writes() end

local function holds_nothing(worker)
  for lane = 1, LANE_COUNT do
    -- @guard deregister: not who holds something
    if call('XPENDING', lane_key(lane), GROUP, '-', '+', 1, worker)[1] then return false end
  end
  return true
end

local function forget(worker)
  if forgotten >= most or not holds_nothing(worker) then return end
  forgotten = forgotten + 1
  -- @guard deregister: looking forgets nobody
  if look_only then return end
  for lane = 1, LANE_COUNT do call('XGROUP', 'DELCONSUMER', lane_key(lane), GROUP, worker) end
  call('HDEL', WORKERS, worker)
  -- @guard deregister: who is gone is no home
  HOOKS.worker_gone(worker)
  -- @guard deregister: no wake-up for the gone
  call('ZREM', WAITING, worker)
  -- @guard deregister: no watch of the gone
  call('ZREM', WATCH, worker)
end

local function forget_the_gone()
  local flat, now, looked_at = call('HGETALL', WORKERS), now_ms(), {}
  for i = 1, #flat, 2 do
    local known, description = pcall(cjson.decode, flat[i + 1])
    local seen = known and type(description) == 'table' and tonumber(description.seen_ms) or 0
    looked_at[flat[i]] = true
    if seen < now - silent_ms then forget(flat[i]) end
    -- @guard deregister: a sign of life from before the clock was set back counts as one of now
    if seen > now and not look_only then
      description.seen_ms = now
      known, description = pcall(cjson.encode, description)
      if known then call('HSET', WORKERS, flat[i], description) end
    end
  end
  for lane = 1, LANE_COUNT do
    for _, row in ipairs(call('XINFO', 'CONSUMERS', lane_key(lane), GROUP)) do
      local name = named(row, 'name')
      if name ~= NOBODY and not looked_at[name] and named(row, 'idle') >= silent_ms then
        looked_at[name] = true
        forget(name)
      end
    end
  end
  if pause_ms > 0 and forgotten < most then call('HSET', CLOCK, 'forgot', string.format('%.0f', now_ms())) end
end

if leaving ~= '' then forget(leaving) else forget_the_gone() end
HOOKS.write_changes()
return forgotten
