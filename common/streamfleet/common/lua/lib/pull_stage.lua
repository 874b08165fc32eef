-- @include pull_turns
-- First part of a pull: move every new entry into its lane's ready set.

-- Raises WRONGTYPE if a key of the hints was overwritten.
local function read_wishes()
  local n, free, stage_entries, owing, watch_ms, runs = struct.unpack('<dddddd', ARGV[3])
  local each, hints = '<' .. string.rep('d', LANE_COUNT), {}
  local rooms, owed = {struct.unpack(each, ARGV[3], 49)}, {struct.unpack(each, ARGV[3], 49 + 8 * LANE_COUNT)}
  rooms[LANE_COUNT + 1] = nil   -- the place behind them
  for i = 6, #ARGV, 2 do
    local lane, id = tonumber(ARGV[i]), ARGV[i + 1]
    hints[#hints + 1] = {lane, id, lane > 0 and held_attempt(lane, id, NOBODY)}
  end
  -- @guard types: wake of another type is noticed before a write by its hints
  if hints[1] then call('XLEN', WAKE) end
  return {worker = ARGV[2], n = n, owed = owed, free = free, stage_entries = stage_entries, owing = owing == 1,
     watch_ms = watch_ms, held = runs, rooms = rooms, hints = hints,
    first = MOST_UNSEEN >= 2 * LANE_COUNT and 2 or 1,   -- of each lane, to see if there is more
    needs = ARGV[4] ~= '' and ARGV[4] or nil, start = ARGV[5] ~= '' and ARGV[5] or nil}
end

-- Entries that a blocking read delivered to a watcher go back, so that the pull can pick the best instead. Delivered
-- entries are held by NOBODY: if the watcher dies first, reclaiming them counts no attempt. Returns how many went back,
-- and how many of them have ended.
local function put_back(hints, waiting)
  local back, ended = 0, 0
  for _, hint in ipairs(hints) do
    local lane, id, handed = unpack(hint)
    if lane == 0 then
      call('XACK', WAKE, GROUP, id)
      call('XDEL', WAKE, id)
    elseif handed then
      local fields = fetch_fields(lane, id)
      -- @guard put back: counted as staged
      count_staged(lane, id, fields)
      if fields then
        local _, added, gone = come_back(lane, id, fields)
        waiting[lane], ended = waiting[lane] + added, ended + gone
      else
        count('vanished')
      end
      -- @guard put back: no longer pending
      call('XACK', lane_key(lane), GROUP, id)
      back = back + 1
    end
  end
  return back, ended
end

-- `some`: {lane = true} of those to read; nil for all.
local function read_new(chunk, some)
  local words = {nil, nil, nil, nil, nil, nil, nil, nil}
  for lane = 1, LANE_COUNT do
    if not some or some[lane] then words[#words + 1] = lane_key(lane) end
  end
  for _ = 1, #words do words[#words + 1] = '>' end
  return call('XREADGROUP', 'GROUP', GROUP, NOBODY, 'COUNT', chunk, 'NOACK', 'STREAMS', unpack(words)) or {}
end

-- After the group is created again or set back, entries are delivered again: those staged before are not counted twice,
-- and stay where they are. LANES remembers how far each lane was staged, and how many entries that were.
local function is_tracked(lane, id, fields)
  return call_if_typed('ZSCORE', DELAYED, entry_field(lane, id)) or call('XPENDING', lane_key(lane), GROUP, id, id, 1)[1]
    or HOOKS.waits(lane, id, fields)
end

-- The fields of LANES for each lane, as look_at_queue returns it: text, or false; and the place before the first lane's.
local lanes
local SEEN, CREDIT, PAUSED = 3 + LANE_COUNT, 3 + 2 * LANE_COUNT, 3 + 3 * LANE_COUNT
local arrived = {}   -- by lane: stream id to the row of what was staged in this call, as the hook `became_ready` takes it

local function look_at_lanes() lanes = lanes or look_at_queue('ahead:,staged:,credit:,paused:,') end
local function is_paused(lane) return lanes and lanes[PAUSED + lane] end

local function save_seen(moved, fresh)
  if fresh == 0 then return end
  local words = {'HSET', LANES}
  for lane in pairs(moved) do
    words[#words + 1] = 'staged:' .. LANE_NAMES[lane]
    words[#words + 1] = lanes[SEEN + lane]
  end
  call(unpack(words))
  call('HINCRBY', LANES, 'ever_staged', fresh)
end

-- Returns how many are new in the ready set, their bytes, the largest, how many were never staged before, and how many
-- have ended because they must not run: later, one that is too large would be copied a second time.
local function stage_lane(lane, entries, moved)
  local rows, bytes, largest, fresh, ended = {nil}, 0, 1, 0, 0
  local here, seen = arrived[lane] or {}, given_id(lanes[SEEN + lane])
  arrived[lane], seen = here, seen and encode_id(seen)
  for _, item in ipairs(entries) do
    local member, ms = member_and_ms(item[1])
    if ms > now_ms() then keep_enqueued_ms(lane, item[1]) end
    local size, deadline, given, tenant, if_late, session = skim_entry(lane, item[1], item[2])
    bytes, largest = bytes + size, math.max(largest, size)
    local again = seen and member <= seen
    if not again then
      seen, lanes[SEEN + lane], moved[lane], fresh = member, item[1], true, fresh + 1
      count('staged')
    end
    if again and is_tracked(lane, item[1], item[2]) then   -- it stays where it is
    elseif not again and unfit(size, deadline) then
      end_unfit(lane, item[1], item[2])
      ended = ended + 1
    elseif if_late == 'refuse' and not again and deadline and TURNS.refuses(lane, item[1], item[2], deadline, tenant, rows) then
      ended = ended + 1
    else
      local row = {item[1], member, item[2], size, deadline, given, tenant, session}
      rows[#rows + 1], here[item[1]] = row, row
    end
  end
  -- @guard hooks: what is staged becomes ready
  local added = HOOKS.became_ready(lane, rows)
  return added, bytes, largest, fresh, ended
end

-- Bounded in entries and bytes, because XREADGROUP copies bodies into Lua; the chunk grows with the sizes seen, so that
-- a few huge bodies cannot stall the server together. First some of every lane, because each has its share; then urgent
-- lanes first: if the bound cuts one short, less urgent entries must not be taken instead. `waiting`: number that wait
-- in each lane; increased here. `first`: new entries of each lane, of which up to `limits.first` were asked for. Returns how
-- many were staged, the lane that was cut short, or nil, which lanes have more, and how many have ended.
local function stage(limits, waiting, first)
  local most_ended = 100   -- ending one costs as much as staging ten
  local staged, bytes, largest, fresh, ended, moved, more = 0, 0, 1, 0, 0, {}, {}
  local streams, chunk, at, cut = first, limits.first, 0, nil
  while streams do
    for _, stream in ipairs(streams) do
      local lane, entries = 1, stream[2]
      while lane_key(lane) ~= stream[1] do lane = lane + 1 end
      local added, size, most, unseen, unfit_ones = stage_lane(lane, entries, moved)
      waiting[lane], staged, fresh = waiting[lane] + added, staged + #entries, fresh + unseen
      bytes, largest, ended = bytes + size, math.max(largest, most), ended + unfit_ones
      if #entries == chunk then more[lane] = true end
    end
    local room = math.max(1, math.min(64, MOST_UNSEEN, math.floor(CHUNK_BYTES / largest)))
    streams = nil
    if at == 0 then
      at, chunk = 1, math.min(math.max(2, math.floor(limits.n / 8)), room)
      if next(more) and bytes < cfg.copied_bytes then streams, more = read_new(chunk, more), {} end
    end
    while not streams and not more[at] and at < LANE_COUNT do at = at + 1 end
    if not streams and more[at] then
      if staged >= limits.stage_entries or bytes >= cfg.copied_bytes or ended >= most_ended then cut = at; break end
      chunk, more[at] = math.min(chunk * 2, room), nil
      streams = read_new(chunk, {[at] = true})
    end
  end
  save_seen(moved, fresh)
  return staged, cut, more, ended
end
