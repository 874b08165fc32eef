-- @include pace
-- Tell the place of requests, and when a worker is likely to take them.
-- KEYS: shared; the string `pace`.
-- ARGV: 1 configuration; 2 JSON [[lane, its id as member of a ready set, deadline, false, tenant]…] of what waits, and
--   [lane, false, deadline (epoch ms, or false), ttl (ms, or false), tenant, number] of what would be added now, behind so
--   many of the same call. A tenant is '' for none, and false where it is not known. A row that would be in time counts for
--   those behind it.
-- Returns for each: number of requests of its lane that go first, ms until it is taken, ms of a usual run, ms that would
--   be left of them until its deadline, and the rank of one that waits; '' for what is not known, and for all of a request
--   that does not wait in order.
local expected, replies, stay = expectations(), {}, {}

-- Rank of a request that waits, its tenant, and where it waits; nothing for one that is not found.
local function find(lane, member, deadline, tenant)
  local rank, id = call('ZSCORE', ready_key(lane), member), decode_id(member)
  if rank then return rank, '', ready_key(lane), member end
  if not (id and ordering() and order().length(lane) > 0) then return nil end
  local may_read = not redis.acl_check_cmd or redis.acl_check_cmd('XRANGE', lane_key(lane), id, id)
  local found, _, name, _, sets = order().find(lane, id, may_read and fetch_fields(lane, id))
  if found then return found, name, sets[1], sets[2] end
  -- Producers may not read entries, because they have bodies: for them it waits where its deadline says.
  if not may_read then return deadline, tenant, '', '' end
end

for _, row in ipairs(cjson.decode(ARGV[2])) do
  local lane, waits, deadline, ttl, tenant, behind = unpack(row)
  deadline, tenant = deadline or ttl and now_ms() + ttl or nil, tenant or ''
  local same, rank, key, member = lane .. tenant
  if waits then
    rank, tenant, key, member = find(lane, waits, deadline, tenant)
  else
    rank, behind = deadline or now_ms() + cfg.patience_ms, (behind or 0) + (stay[same] or 0)
  end
  local place, ms, run, left = nil, nil, nil, nil
  if rank then place, ms, run = expected(lane, tonumber(rank), tenant, behind or 0, behind or 0, key, member) end
  if ms and deadline then left = deadline - now_ms() - ms - run end
  if not waits and (not left or left >= 0) then stay[same] = (stay[same] or 0) + 1 end
  for _, value in ipairs({place or '', ms or '', run or '', left or '', waits and rank or ''}) do
    replies[#replies + 1] = value ~= '' and string.format('%.0f', value) or ''
  end
end
return replies
