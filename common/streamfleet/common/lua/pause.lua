-- @include keys
-- @include wake
-- Pause or resume lanes: nothing is taken from a paused lane. Its running requests continue, new ones are accepted, and
-- deadlines pass as usual.
-- KEYS: shared. ARGV: 1 configuration; 2 JSON list of lanes; 3 '1' to pause, '0' to go on.
-- Returns for each lane 1 if that changed anything.
require_types()
open_for_writes()
local pause, changed, first = ARGV[3] == '1', {}, LANE_COUNT
for i, lane in ipairs(cjson.decode(ARGV[2])) do
  local field = 'paused:' .. LANE_NAMES[lane]
  local paused = call('HGET', LANES, field)
  changed[i] = (paused ~= false) == pause and 0 or 1
  if pause and not paused then call('HSET', LANES, field, string.format('%.0f', now_ms())) end
  if not pause then call('HDEL', LANES, field) end
  first = math.min(first, lane)
end
-- @guard pause: going on wakes somebody
if not pause then wake(first) end   -- idle workers believe that there is nothing to take
return changed
