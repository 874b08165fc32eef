-- @include come_back
-- @include wake
-- Return delayed requests that are due to their old rank, and replace the watch or wake-up of a worker that died.
-- KEYS: shared. ARGV: 1 configuration; 2 most requests; 3 the longest possible delay (ms), or ''.
-- Returns {promoted, ms until the next one is due, or ''}.
local MOST_WATCH_MS = 120000
require_types()
open_for_writes()
local now, promoted, bytes = now_ms(), 0, 0
for _, member in ipairs(call('ZRANGEBYSCORE', DELAYED, '-inf', now, 'LIMIT', 0, ARGV[2])) do
  if bytes >= cfg.copied_bytes then break end   -- bodies are copied: the next call continues
  local lane, id = lane_and_id(member)
  local fields = lane and fetch_fields(lane, id)
  if not lane then   -- written by hand: dropped
  elseif fields then
    local size, _, ended = come_back(lane, id, fields)
    bytes, promoted = bytes + size, promoted + 1 - ended
  else
    remove_entry(lane, id)
    count('vanished')
  end
  -- @guard promote: no longer delayed
  call('ZREM', DELAYED, member)
end
-- @guard promote: homes are looked after
look_at_sched()
if some_sessions and homes() then homes().tidy() end
write_counts()
local ready = 0
for lane = 1, LANE_COUNT do ready = ready + call('ZCARD', ready_key(lane)) end
-- @guard promote: work is said again
if ready > 0 then
  wake()
  -- @guard promote: a stand-by is told too, where the only listener died
  leave_standby_token()
end
-- @guard promote: dead watchers are struck off
call('ZREMRANGEBYSCORE', WATCH, 0, now)   -- below zero: idle waiters
-- Times further ahead are from before the clock was set back.
-- @guard promote: watches of a clock that was set back end
call('ZREMRANGEBYSCORE', WATCH, '(' .. now + MOST_WATCH_MS, '+inf')
local latest = string.format('%.0f', now + (tonumber(ARGV[3]) or 0))
for _, member in ipairs(ARGV[3] ~= '' and call('ZRANGEBYSCORE', DELAYED, '(' .. latest, '+inf', 'LIMIT', 0, ARGV[2]) or {}) do
  -- @guard promote: due times of a clock that was set back are cut
  call('ZADD', DELAYED, latest, member)
end
-- A watcher died: an idle waiter takes its place.
-- @guard promote: dead watchers are replaced
if call('ZCOUNT', WATCH, now, '+inf') < cfg.watchers then leave_token() end
local next_due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')
return {promoted, next_due[2] and string.format('%.0f', math.max(0, next_due[2] - now)) or ''}
