-- @include finish
-- @include lease
-- @include wake
-- Hand requests back, at their old rank, at once. No attempt is counted: this is for a worker that drains.
-- KEYS: shared. ARGV: 1 configuration; 2 worker; 3 JSON [[lane, stream id, attempt]…].
-- Returns how many were handed back; the others were no longer this worker's.
require_groups()
open_for_writes()
local worker, released = ARGV[2], 0
for _, lease in ipairs(cjson.decode(ARGV[3])) do
  local lane, id = lease[1], lease[2]
  if held(lane, id, worker, lease[3]) then
    local fields = fetch_fields(lane, id)
    if fields then
      make_ready(lane, id, fields)
      call('XACK', lane_key(lane), GROUP, id)
      released = released + 1
    else
      remove_entry(lane, id)
      count('vanished')
    end
  end
end
write_counts()
if released > 0 then wake() end
return released
