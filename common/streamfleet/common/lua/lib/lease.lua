-- @include forget
-- Restarts the leases of some of a worker's entries in a lane. Returns {stream id = true} of those that still exist, and a list
-- of the others: from Redis 7.0 on, claiming an entry that was XDELed by hand drops it.
local function stamp(lane, worker, ids)
  local claim, there, gone = {'XCLAIM', lane_key(lane), GROUP, worker, 0, nil, nil}, {}, {nil}
  for _, id in ipairs(ids) do claim[#claim + 1] = id end
  -- @guard renew: deliveries are left alone
  claim[#claim + 1] = 'JUSTID'   -- resets the idle time and keeps the delivery counter
  for _, id in ipairs(call(unpack(claim))) do there[id] = true end
  for _, id in ipairs(ids) do
    if not there[id] then gone[#gone + 1] = id end
  end
  return there, gone
end
