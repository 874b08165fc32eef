-- @include come_back
-- End queued requests when their deadline passes, not only when their turn comes.
-- KEYS: shared. ARGV: 1 configuration; 2 most entries to examine in each lane; 3 most to end; 4 an earlier position, JSON.
-- Returns {ended, 1 if a bound cut the look short, rank (ms) and position within that rank up to which each lane has
--   been examined}.
require_types()
open_for_writes()
local now, looked_at, most, places = now_ms(), ARGV[2], tonumber(ARGV[3]), cjson.decode(ARGV[4])
local ended, cut, bytes, endings = 0, 0, 0, 0

-- A rank from the default deadline is not a deadline. The id alone shows it: a long backlog is full of such entries,
-- and reading all of them would hold up the server. The pull ends an entry whose real deadline happens to equal it.
local function ranks_by_patience(lane, id, rank) return enqueued_ms(lane, id) + cfg.patience_ms == tonumber(rank) end

-- True if the entry has another rank from now on, or waits no more.
local function end_if_late(lane, member, rank)
  local id = decode_id(member)
  if not id then return call('ZREM', ready_key(lane), member) end
  if ranks_by_patience(lane, id, rank) then return false end
  local fields = fetch_fields(lane, id)
  if not fields then return false end   -- removed by hand: the pull that picks it counts it
  local size, late = end_unfit(lane, id, fields)
  bytes, ended, endings = bytes + size, ended + (late and 1 or 0), endings + (late and 1 or 0)
  local _, deadline = skim_entry(lane, id, fields)
  if not late and (not deadline or deadline <= now) then return false end
  -- @guard hooks: an expired request waits no more
  HOOKS.left(lane, id, fields)
  -- It went ahead as a turn of a program, and goes by its deadline from now on.
  -- @guard program: a turn that has waited long goes by its own deadline
  if not late then make_ready(lane, id, fields) end
  return true
end

-- The next call begins with this rank, but skips examined entries only if all of them have this rank, because pulls
-- take entries from there meanwhile.
local function cut_at(rank, place, first)
  cut = 1
  return rank, rank == first and tostring(place) or '0'
end

local function end_late_in(lane, rank, place)   -- returns the position up to which it has examined the lane
  local late = call('ZRANGEBYSCORE', ready_key(lane), rank, now, 'WITHSCORES', 'LIMIT', place, looked_at)
  -- @guard expire: each lane has bounds of its own
  bytes, endings = 0, 0
  for i = 1, #late, 2 do
    if late[i + 1] ~= rank then rank, place = late[i + 1], 0 end
    if bytes >= cfg.copied_bytes or endings >= most then return cut_at(rank, place, late[2]) end
    if not end_if_late(lane, late[i], rank) then place = place + 1 end
  end
  -- @guard expire: a backlog without deadlines hides none
  if #late == 2 * tonumber(looked_at) then return cut_at(rank, place, late[2]) end
  return string.format('%.0f', now + 1), '0'
end

local reached = {}
for lane = 1, LANE_COUNT do
  local rank, place = places[2 * lane - 1] or '-inf', places[2 * lane] or '0'
  reached[2 * lane - 1], reached[2 * lane] = end_late_in(lane, rank, tonumber(place))
end
write_counts()
return {ended, cut, unpack(reached)}
