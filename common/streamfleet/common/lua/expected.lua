-- @include pace
-- Tell the place of requests, and when a worker is likely to take them.
-- KEYS: shared; the string `pace`.
-- ARGV: 1 configuration; 2 JSON [[lane, member of its ready set, false, false, tenant]…] of what waits, and
--   [lane, false, deadline (epoch ms, or false), ttl (ms, or false), tenant, number] of what would be added now, behind so
--   many of the same call. A tenant is '' for none, and false where it is not known. A row that would be in time counts for
--   those behind it.
-- Returns for each: number of requests of its lane that go first, ms until it is taken, ms of a usual run, and ms that would
--   be left of them until its deadline; '' for what is not known, and for all of a request that does not wait in order.
local expected, replies, stay = expectations(), {}, {}

-- Producers may not read entries, because they have bodies.
local function tenant_of(lane, member)
  if not sharing() or redis.acl_check_cmd and not redis.acl_check_cmd('XRANGE', lane_key(lane), '-', '+') then return nil end
  local id = decode_id(member)
  local fields = id and fetch_fields(lane, id)
  if not fields then return nil end
  local _, _, _, tenant = skim_entry(lane, id, fields)
  return tenant or ''
end

for _, row in ipairs(cjson.decode(ARGV[2])) do
  local lane, member, deadline, ttl, tenant, behind = unpack(row)
  deadline, tenant = deadline or ttl and now_ms() + ttl or nil, tenant or nil
  local first, rank
  if member then
    first, rank = call('ZRANK', ready_key(lane), member), call('ZSCORE', ready_key(lane), member)
    tenant = tenant or tenant_of(lane, member)
  else
    local key = lane .. (tenant or '')
    behind = (behind or 0) + (stay[key] or 0)
    rank = deadline or now_ms() + cfg.patience_ms
    first = behind + call('ZCOUNT', ready_key(lane), '-inf', string.format('%.0f', rank))
  end
  local place, ms, run, left = nil, nil, nil, nil
  if first then
    place, ms, run = expected(lane, tonumber(rank), first, tenant, function(t, name)
      local own = t.number(lane, name, rank, member) + (member and 0 or behind)
      -- Entries that were ready before tenants came, and have not been looked at since, are in no index.
      return name == '' and t.bare(lane) and math.max(own, first) or own
    end)
  end
  if ms and deadline then left = deadline - now_ms() - ms - run end
  if not member and (not left or left >= 0) then stay[lane .. (tenant or '')] = (stay[lane .. (tenant or '')] or 0) + 1 end
  for _, value in ipairs({place or '', ms or '', run or '', left or ''}) do
    replies[#replies + 1] = value ~= '' and string.format('%.0f', value) or ''
  end
end
return replies
