-- @include keys
-- Accept requests, each id once.
-- KEYS: shared; then for each request its request record and its result.
-- ARGV: 1 configuration, `touch` in it when replicas are waited for; 2 lane limit (entries); 3 life of the record of a
--   request that does not end (ms); then for each request: lane, id, digest, reply name or '', number of field strings,
--   the fields.
-- Returns for each request {code, entry}: 1 accepted; 2 the same request was accepted before (entry of then);
--   3 conflict: the id belongs to another request; 4 the lane is full; 5 the id already has a result.
local limit, record_ttl = tonumber(ARGV[2]), ARGV[3]
local length, replies = {}, {}

local function accept(lane, record_key, result, id, digest, reply, first, last)
  local record = call('GET', record_key)
  if record then
    local known, entry = string.match(record, '^(%S+) (%S+)')
    -- WAIT is about what its connection wrote: a request known already is written once more, as it is.
    if cfg.touch and known == digest then call('SET', record_key, record, 'KEEPTTL') end
    return {known == digest and 2 or 3, entry}
  end
  if call('EXISTS', result) == 1 then return {5, ''} end
  length[lane] = length[lane] or call('XLEN', lane_key(lane))
  if length[lane] >= limit then return {4, ''} end
  local stream_id = call('XADD', lane_key(lane), '*', unpack(ARGV, first, last))
  length[lane] = length[lane] + 1
  local entry = entry_name(lane, stream_id)
  call('SET', record_key, digest .. ' ' .. entry .. ' ' .. reply, 'PX', record_ttl)
  return {1, entry}
end

local at, key = 4, 19
while at <= #ARGV do
  local lane, id, digest, reply, size = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  replies[#replies + 1] = accept(lane, KEYS[key], KEYS[key + 1], id, digest, reply, at + 5, at + 4 + size)
  at, key = at + 5 + size, key + 2
end
return replies
