-- @include keys
-- The fields of LANES for the whole queue, read once in a call: some_tenants and some_sessions are the values of the fields
-- `tenants` and `sessions`, which the policies write; some_interrupted is the number of requests that were interrupted.
-- `queue_told`: all of it, as look_at_queue returns it.
local queue_told, some_interrupted, some_tenants, some_sessions

-- `fields`: more of each lane than 'ahead:,', which comes first. Returns the values of all, behind three others.
local function look_at_queue(fields)
  if queue_told and not fields then return queue_told end
  local found = call_if_typed('HMGET', LANES, 'tenants', 'interrupted', 'sessions', lane_fields(fields or 'ahead:,')) or {}
  some_tenants, some_interrupted, some_sessions = found[1], found[2], found[3]
  queue_told = found
  return found
end
