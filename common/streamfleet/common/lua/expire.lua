-- @include finish
-- End queued requests when their deadline passes, not only when their turn comes: with all engines full that may be late.
-- KEYS: shared. ARGV: 1 configuration; 2 how many to look at in each lane at most.
-- Returns how many were ended.
open_for_writes()
local now, ended = now_ms(), 0

local function end_if_late(lane, member)
  local id = decode_id(member)
  local fields = fetch_fields(lane, id)
  if not fields then return end   -- removed by hand: the pull that picks it counts it
  local entry = read_entry(lane, id, fields)
  if not entry.deadline or entry.deadline > now then return end   -- ranks as if it had one
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
  for _, member in ipairs(call('ZRANGEBYSCORE', ready_key(lane), '-inf', now, 'LIMIT', 0, ARGV[2])) do
    end_if_late(lane, member)
  end
end
write_counts()
return ended
