-- @include tenants
-- @include affinity
-- An entry becomes ready, or is about to be ready no more: the indexes beside the ready sets follow.

-- An entry is about to be ready no more, and no pull takes it. `rank`: as in the ready set; false if it was not there.
local function leave_index(lane, id, fields, rank)
  leave_home(lane, id, rank)
  local shared = sharing()
  if not shared then return end
  local _, _, _, tenant = skim_entry(lane, id, fields)
  shared.remove(lane, id, tenant, rank)
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
function AFFINITY.end_lead(lane, id, fields, rank)
  local _, deadline = skim_entry(lane, id, fields)
  if not deadline or deadline <= now_ms() then return false end
  leave_index(lane, id, fields, rank)
  -- @guard program: a turn that has waited long goes by its own deadline
  make_ready(lane, id, fields)
  return true
end
