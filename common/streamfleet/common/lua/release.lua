-- @include finish
-- @include lease
-- @include wake
-- Hand requests back, at their old rank, at once. No attempt is counted: this is for a worker that drains.
-- KEYS: shared. ARGV: 1 configuration; 2 worker; 3 JSON [[lane, stream id, attempt]…]; 4 '1': their lanes' turns were not
--   used, and come again at once. Else one that has to wait for room would spend every turn of a lane that has only a share.
-- Returns how many were handed back; the others were no longer this worker's.
require_groups()
open_for_writes()
local worker, released, unused = ARGV[2], 0, {}
for _, lease in ipairs(cjson.decode(ARGV[3])) do
  local lane, id = lease[1], lease[2]
  if held(lane, id, worker, lease[3]) then
    local fields = fetch_fields(lane, id)
    if fields then
      make_ready(lane, id, fields)
      call('XACK', lane_key(lane), GROUP, id)
      released = released + 1
      unused[lane] = ARGV[4] == '1'
    else
      remove_entry(lane, id)
      count('vanished')
    end
  end
end
write_counts()
for lane, turn in pairs(unused) do
  if turn and tonumber(call('HGET', SCHED, lane) or 0) < 1000 then call('HSET', SCHED, lane, 1000) end
end
if released > 0 then wake() end
return released
