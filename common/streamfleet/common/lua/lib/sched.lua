-- @include keys
-- What SCHED tells of the whole queue, read once in a call: some_tenants and some_sessions are the values of the fields
-- `tenants` and `sessions`, which the policies write; some_interrupted is the number of requests that were interrupted.
-- `sched`: all of it, as look_at_sched returns it.
local sched, some_interrupted, some_tenants, some_sessions

-- `fields`: more of each lane than 'ahead:,', which comes first. Returns the values of all, behind three others.
local function look_at_sched(fields)
  if sched and not fields then return sched end
  local found = call_if_typed('HMGET', SCHED, 'tenants', 'interrupted', 'sessions', lane_fields(fields or 'ahead:,')) or {}
  some_tenants, some_interrupted, some_sessions = found[1], found[2], found[3]
  sched = found
  return found
end
