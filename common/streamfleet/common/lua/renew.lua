-- @include finish
-- @include lease
-- Renew leases, and say what became of them.
-- KEYS: shared. ARGV: 1 configuration; 2 worker; 3 JSON [[lane, stream id, attempt, request id]…].
-- Returns for each: 1 renewed; 2 renewed, but the id has a result (cancelled, or answered elsewhere); 0 lost.
require_groups()
open_for_writes()
local worker, leases = ARGV[2], cjson.decode(ARGV[3])
local codes, renewals = {}, {}
for i, lease in ipairs(leases) do
  local lane, id = lease[1], lease[2]
  codes[i] = 0
  if held(lane, id, worker, lease[3]) then
    renewals[lane] = renewals[lane] or {}
    renewals[lane][id] = i
  end
end
for lane, index in pairs(renewals) do
  local claim = {'XCLAIM', lane_key(lane), GROUP, worker, 0}
  for id in pairs(index) do claim[#claim + 1] = id end
  claim[#claim + 1] = 'JUSTID'   -- resets the idle time and leaves the delivery counter alone
  for _, id in ipairs(call(unpack(claim))) do
    codes[index[id]] = answered(leases[index[id]][4]) and 2 or 1
    index[id] = nil
  end
  for id in pairs(index) do   -- XDELed by hand: from Redis 7.0 on, claiming such an entry drops it
    remove_entry(lane, id)
    count('vanished')
  end
end
write_counts()
return codes
