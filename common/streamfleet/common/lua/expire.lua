-- @include set_back
-- End queued requests when their deadline passes, not only when their turn comes: with all engines full that may be late.
-- What comes to be ready with its deadline passed has ended there (finish.lua), so that nothing need be looked at twice.
-- KEYS: shared. ARGV: 1 configuration; 2 how many to look at in each lane at most; 3 how many of them to end; 4 JSON of what
--   an earlier call returned: up to where it has looked; or '[]'.
-- Returns {ended, 1 where a bound cut the look short, rank (ms) and place within that rank up to which each lane has been
--   looked through}.
require_types()
open_for_writes()
local now, looked_at, most, places = now_ms(), ARGV[2], tonumber(ARGV[3]), cjson.decode(ARGV[4])
local ended, cut, bytes, endings = 0, 0, 0, 0

-- A rank that patience gives is no deadline. Told from the id alone, because a backlog that waits for long is full of
-- such entries, and reading them all would hold up the server; a deadline that happens to equal it is left to the pull.
local function ranks_by_patience(lane, id, rank) return enqueued_ms(lane, id) + cfg.patience_ms == tonumber(rank) end

-- True if the entry waits no more.
local function end_if_late(lane, member, rank)
  local id = decode_id(member)
  if not id then return call('ZREM', ready_key(lane), member) end
  if ranks_by_patience(lane, id, rank) then return false end
  local fields = fetch_fields(lane, id)
  if not fields then return false end   -- removed by hand: the pull that picks it counts it
  local size, late = end_late(lane, id, fields)
  bytes = bytes + size
  if not late then return false end
  call('ZREM', ready_key(lane), member)
  ended, endings = ended + 1, endings + 1
  return true
end

-- The next call begins with this rank, but passes over what was looked at only if all of it was of this rank: pulls take
-- from there meanwhile.
local function cut_at(rank, place, first)
  cut = 1
  return rank, rank == first and tostring(place) or '0'
end

-- Returns up to where the lane has been looked through.
local function end_late_in(lane, rank, place)
  local late = call('ZRANGEBYSCORE', ready_key(lane), rank, now, 'WITHSCORES', 'LIMIT', place, looked_at)
  bytes, endings = 0, 0
  for i = 1, #late, 2 do
    if late[i + 1] ~= rank then rank, place = late[i + 1], 0 end
    if bytes >= MOST_BYTES or endings >= most then return cut_at(rank, place, late[2]) end
    if not end_if_late(lane, late[i], rank) then place = place + 1 end
  end
  if #late == 2 * tonumber(looked_at) then return cut_at(rank, place, late[2]) end
  return string.format('%.0f', now + 1), '0'
end

local reached = {}
for lane = 1, LANE_COUNT do
  rank_anew(lane)
  local rank, place = places[2 * lane - 1] or '-inf', places[2 * lane] or '0'
  reached[2 * lane - 1], reached[2 * lane] = end_late_in(lane, rank, tonumber(place))
end
write_counts()
return {ended, cut, unpack(reached)}
