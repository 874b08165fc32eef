-- @include keys
-- @include lease
-- Renew leases, and say what became of them.
-- KEYS: shared. ARGV: 1 configuration; 2 worker; 3 JSON [[lane, stream id, attempt, request id]…].
-- Returns for each: 1 renewed; 2 renewed, but the id has a result (cancelled, or answered elsewhere); 0 lost.
local worker, leases = ARGV[2], cjson.decode(ARGV[3])
local codes, renewals = {}, {}
for i, lease in ipairs(leases) do
  local lane, id = lease[1], lease[2]
  if held(lane, id, worker, lease[3]) then
    renewals[lane] = renewals[lane] or {'XCLAIM', lane_key(lane), GROUP, worker, 0}
    table.insert(renewals[lane], id)
    codes[i] = call('EXISTS', result_key(lease[4])) == 1 and 2 or 1
  else
    codes[i] = 0
  end
end
for _, renewal in pairs(renewals) do
  renewal[#renewal + 1] = 'JUSTID'   -- resets the idle time and leaves the delivery counter alone
  call(unpack(renewal))
end
return codes
