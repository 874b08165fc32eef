-- @include pace
-- Tell the place of requests, and when a worker is likely to take them.
-- KEYS: shared. ARGV: 1 configuration; 2 JSON [[lane, member of its ready set]…] of what waits, and [lane, false, deadline
--   (epoch ms, or false), ttl (ms, or false)] of what would be added now.
-- Returns for each: number of requests of its lane that go first, ms until it is taken, ms of a usual run, and ms that would
--   be left of them until its deadline; '' for what is not known, and for all of a request that does not wait in order.
local expected, replies = expectations(), {}

for _, row in ipairs(cjson.decode(ARGV[2])) do
  local lane, member, deadline, ttl = unpack(row)
  deadline = deadline or ttl and now_ms() + ttl or nil
  local first
  if member then
    first = call('ZRANK', ready_key(lane), member)
  else
    first = call('ZCOUNT', ready_key(lane), '-inf', string.format('%.0f', deadline or now_ms() + cfg.patience_ms))
  end
  local ms, run, left = nil, nil, nil
  if first then ms, run = expected(lane, first) end
  if ms and deadline then left = deadline - now_ms() - ms - run end
  for _, value in ipairs({first or '', ms or '', run or '', left or ''}) do
    replies[#replies + 1] = value ~= '' and string.format('%.0f', value) or ''
  end
end
return replies
