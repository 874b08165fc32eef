-- @include lane_limits
-- @include same_request
-- Accept requests, each id once.
-- KEYS: the lanes; if ARGV[6] is not 0, then their ready sets, `arrivals`, `lanes`, `served` and `delayed`; then
--   the request records; then, in the same order, the results.
-- ARGV: 1 lane limit (entries); 2 lane limit (bytes); 3 life of the record of a request that has not ended (ms); 4 `touch`
--   if the caller waits for replicas, or ''; 5 number of lanes; 6 percent of a lane's limits that one tenant may have
--   waiting while others use the queue, or 0 if no request names a tenant, or one may have all; then for each run of
--   similar requests: their number, lane, its name, reply name or '', number of fields, their names; and of each request
--   of it: digest, its fields' values.
-- Returns for each request code, entry: 1 accepted; 2 the same request was accepted before (entry of then);
--   3 conflict: the id belongs to another request; 4 the lane is full (by `bytes`, or ''); 5 the id already has a result;
--   6 its tenant has its share of the lane waiting (by `bytes`, or '').
local record_ttl, touch, count, replies = ARGV[3], ARGV[4] == 'touch', (#KEYS - before) / 2, {}
-- This script writes no results, and there is rarely one: one check for all of them.
local answered = count > 0 and call('EXISTS', unpack(KEYS, before + 1 + count)) > 0

local function accept(record_key, result, lane, lane_name, reply, digest, words, tenant)
  local record = call('GET', record_key)
  -- @guard enqueue: an id once
  if record then
    local same, entry = same_request(record, digest)
    -- WAIT covers only writes of its own connection, so a known record is written again, unchanged.
    if touch and same then call('SET', record_key, record, 'KEEPTTL') end
    return same and 2 or 3, entry or ''
  end
  if answered and call('EXISTS', result) == 1 then return 5, '' end
  length[lane] = length[lane] or call('XLEN', KEYS[lane])
  local size = size_of(lane, words)
  local known = tenant and tenant ~= '' and arrivals.of(lane, tenant)
  local over = known and arrivals.over_share(known, size)
  if over then return 6, over end
  -- @guard enqueue: lanes are bounded
  if length[lane] >= limit then return 4, '' end
  -- @guard enqueue: lanes are bounded in bytes
  if too_many_bytes(lane, size) then return 4, 'bytes' end
  local id = call('XADD', KEYS[lane], '*', unpack(words))
  local entry = lane_name .. ':' .. id
  -- @guard enqueue: within one call too
  length[lane] = length[lane] + 1
  if known then arrivals.add(known, id, size) end
  call('SET', record_key, digest .. ' ' .. entry .. ' ' .. reply, 'PX', record_ttl)
  return 1, entry
end

local n, at = 0, 7
while n < count do
  local to, lane, lane_name, reply = n + tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  local size, words, tenant = tonumber(ARGV[at + 4]), {}, nil
  for field = 1, size do
    words[2 * field - 1] = ARGV[at + 4 + field]
    if arrivals and words[2 * field - 1] == 'tenant' then tenant = 2 * field end
  end
  at = at + 5 + size
  while n < to do
    n = n + 1
    for field = 1, size do words[2 * field] = ARGV[at + field] end
    replies[2 * n - 1], replies[2 * n] =
      accept(KEYS[before + n], KEYS[before + count + n], lane, lane_name, reply, ARGV[at], words, tenant and words[tenant])
    at = at + 1 + size
  end
end
if arrivals then arrivals.write() end
return replies
