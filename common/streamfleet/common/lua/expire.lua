-- @include finish
-- End queued requests when their deadline passes, not only when their turn comes: with all engines full that may be late.
-- KEYS: shared. ARGV: 1 configuration; 2 how many to look at in each lane at most.
-- Returns how many were ended.
open_for_writes()
local now, ended, bytes = now_ms(), 0, 0

-- A rank that patience gives is no deadline. Told from the id alone, because a backlog that waits for long is full of
-- such entries, and reading them all again and again would hold up the server; a deadline that happens to equal it is
-- left to the pull.
local function ranks_by_patience(id, rank) return tonumber(string.match(id, '^%d+')) + cfg.patience_ms == tonumber(rank) end

local function end_if_late(lane, member, id)
  local fields = fetch_fields(lane, id)
  if not fields then return end   -- removed by hand: the pull that picks it counts it
  local entry = read_entry(lane, id, fields)
  bytes = bytes + entry.bytes
  if not entry.deadline or entry.deadline > now then return end
  if answered(entry.id) then
    settle(lane, id, entry)
  else
    local attempts = tonumber(call('HGET', TRIES, tries_field(lane, id)) or 0)
    bury(lane, id, fields, entry,
      {status = 'expired', attempts = attempts, error = deadline_error('while the request was queued')})
  end
  call('ZREM', ready_key(lane), member)
  ended = ended + 1
end

for lane = 1, LANE_COUNT do
  local late = call('ZRANGEBYSCORE', ready_key(lane), '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
  for i = 1, #late, 2 do
    local id = decode_id(late[i])
    if bytes < 1048576 and not ranks_by_patience(id, late[i + 1]) then end_if_late(lane, late[i], id) end
  end
end
write_counts()
return ended
