-- @include come_back
-- @include wake
-- Return delayed requests that are due to their old rank.
-- KEYS: shared. ARGV: 1 configuration; 2 most requests; 3 the longest possible delay (ms), or ''.
-- Returns {returned, ms until the next one is due, or ''}.
require_types()
open_for_writes()
local now, returned, bytes, woken = now_ms(), 0, 0, nil
for _, member in ipairs(call('ZRANGEBYSCORE', DELAYED, '-inf', now, 'LIMIT', 0, ARGV[2])) do
  if bytes >= cfg.copied_bytes then break end   -- bodies are copied: the next call continues
  local lane, id = lane_and_id(member)
  local fields = lane and fetch_fields(lane, id)
  if not lane then   -- written by hand: dropped
  elseif fields then
    local size, _, ended = come_back(lane, id, fields)
    bytes, returned = bytes + size, returned + 1 - ended
    if ended == 0 then woken = math.min(woken or lane, lane) end
  else
    remove_entry(lane, id)
    count('vanished')
  end
  -- @guard return_delayed: no longer delayed
  call('ZREM', DELAYED, member)
end
write_counts()
-- @guard return_delayed: somebody is woken
if woken then wake(woken) end
-- Times further ahead are from before the clock was set back.
local latest = string.format('%.0f', now + (tonumber(ARGV[3]) or 0))
for _, member in ipairs(ARGV[3] ~= '' and call('ZRANGEBYSCORE', DELAYED, '(' .. latest, '+inf', 'LIMIT', 0, ARGV[2]) or {}) do
  -- @guard return_delayed: due times of a clock that was set back are cut
  call('ZADD', DELAYED, latest, member)
end
local next_due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')
return {returned, next_due[2] and string.format('%.0f', math.max(0, next_due[2] - now)) or ''}
