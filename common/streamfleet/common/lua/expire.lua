-- @include finish
-- @include tries
-- End queued requests when their deadline passes, not only when their turn comes: with all engines full that may be late.
-- KEYS: shared. ARGV: 1 configuration; 2 how many to look at in each lane at most; 3 rank (ms) up to which an earlier
--   call has looked, or ''. Ranks beyond it are new; of those before it, only the first few are looked at again.
-- Returns {ended, rank up to which every lane has been looked through}.
require_types()
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
    local attempts = attempts_in(tries_of(lane, id))
    bury(lane, id, fields, entry,
      {status = 'expired', attempts = attempts, error = deadline_error('while the request was queued')})
  end
  call('ZREM', ready_key(lane), member)
  ended = ended + 1
end

-- The rank up to which the lane has been looked through.
local function end_late(lane, from, most)
  local late = call('ZRANGEBYSCORE', ready_key(lane), from, now, 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #late, 2 do
    if bytes >= 1048576 then return late[i + 1] - 1 end
    local id = decode_id(late[i])
    if not id then
      call('ZREM', ready_key(lane), late[i])
    elseif not ranks_by_patience(id, late[i + 1]) then
      end_if_late(lane, late[i], id)
    end
  end
  return #late == 2 * most and late[#late] - 1 or now   -- there may be more of the last one's rank
end

local from, seen = ARGV[3] == '' and '-inf' or '(' .. ARGV[3], now
for lane = 1, LANE_COUNT do
  if from ~= '-inf' then end_late(lane, '-inf', 100) end
  seen = math.min(seen, end_late(lane, from, tonumber(ARGV[2])))
end
write_counts()
return {ended, string.format('%.0f', seen)}
