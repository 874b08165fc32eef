-- @include tenants
-- @include affinity
-- An entry becomes ready, or is ready no more: the indexes beside the ready sets follow.

-- An entry is ready no more, and no pull takes it. Returns its rank; false if it was not ready.
local function leave_ready(lane, id, fields)
  local rank, shared = call('ZSCORE', ready_key(lane), encode_id(id)), sharing()
  if not rank then return false end
  leave_home(lane, id, rank)
  if shared then
    local _, _, _, tenant = skim_entry(lane, id, fields)
    shared.remove(lane, id, tenant, rank)
  end
  -- @guard leave: no longer ready
  call('ZREM', ready_key(lane), encode_id(id))
  return rank
end

-- Returns the entry's size, and 1 unless it was ready before.
local function make_ready(lane, id, fields)
  keep_enqueued_ms(lane, id)
  local bytes, deadline, _, tenant, _, session = skim_entry(lane, id, fields)
  local rank = AFFINITY.rank(lane, id, deadline, fields)
  local added, shared = call('ZADD', ready_key(lane), rank, encode_id(id)), sharing() or tenant and tenants()
  if shared and (tenant or shared.shares(lane)) then shared.add(lane, {{id, rank, tenant, fields}}) end
  find_home(lane, id, rank, fields, session, bytes)
  return bytes, added
end

-- An entry's rank has come and its deadline has not: it went ahead as a turn of a program, and goes by its deadline from
-- now on. Returns false for an entry without a deadline.
function AFFINITY.end_lead(lane, id, fields)
  local _, deadline = skim_entry(lane, id, fields)
  if not deadline or deadline <= now_ms() then return false end
  leave_ready(lane, id, fields)
  -- @guard program: a turn that has waited long goes by its own deadline
  make_ready(lane, id, fields)
  return true
end
