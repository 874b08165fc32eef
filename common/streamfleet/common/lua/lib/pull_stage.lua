-- @include finish
-- @include lease
-- @include pull_judge
-- First part of a pull: move every new entry into its lane's ready set.

local function read_wishes()
  local arg = {worker = ARGV[2], n = tonumber(ARGV[3]), owed = tonumber(ARGV[4]), free = tonumber(ARGV[5]),
    patient = tonumber(ARGV[6]), stage_entries = tonumber(ARGV[7]), watching = ARGV[8] == '1', owing = ARGV[9] == '1',
    watch_ms = tonumber(ARGV[10]), needs = ARGV[11] ~= '' and cjson.decode(ARGV[11]) or nil,
    start = ARGV[12] ~= '' and ARGV[12] or nil, held = tonumber(ARGV[13]), rooms = {}, hints = {}}
  for lane = 1, LANE_COUNT do arg.rooms[lane] = tonumber(ARGV[13 + lane]) end
  for i = 14 + LANE_COUNT, #ARGV, 2 do arg.hints[#arg.hints + 1] = {tonumber(ARGV[i]), ARGV[i + 1]} end
  return arg
end

-- Entries that a blocking read delivered to a watcher go back, so that the pull can pick the best instead. Delivered
-- entries are held by NOBODY: if the watcher dies first, reclaiming them counts no attempt.
local function held_by_nobody(hints)
  local handed = {}
  for i, hint in ipairs(hints) do handed[i] = hint[1] > 0 and held(hint[1], hint[2], NOBODY) end
  return handed
end

-- Returns how many went back, and how many of them have ended.
local function put_back(hints, handed, waiting)
  local back, ended = 0, 0
  for i, hint in ipairs(hints) do
    local lane, id = hint[1], hint[2]
    if lane == 0 then
      call('XACK', WAKE, GROUP, id)
      call('XDEL', WAKE, id)
    elseif handed[i] then
      local fields = fetch_fields(lane, id)
      -- @guard put back: counted as staged
      count_staged(lane, id)
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
  local command, count = {'XREADGROUP', 'GROUP', GROUP, NOBODY, 'COUNT', chunk, 'NOACK', 'STREAMS'}, 0
  for lane = 1, LANE_COUNT do
    if not some or some[lane] then command[#command + 1], count = lane_key(lane), count + 1 end
  end
  for _ = 1, count do command[#command + 1] = '>' end
  return call(unpack(command)) or {}
end

-- After the group is created again or set back, entries are delivered again: those staged before are not counted twice,
-- and stay where they are. SCHED remembers how far each lane was staged, and how many entries that were.
local function is_tracked(lane, id)
  return call('ZSCORE', DELAYED, entry_field(lane, id)) or call('XPENDING', lane_key(lane), GROUP, id, id, 1)[1]
end

local lanes   -- {seen, credit, paused}: what SCHED tells of each lane
-- @begin
lanes = nil
-- @end

local function look_at_lanes()
  if lanes then return lanes end
  local found = look_at_sched('ahead:,seen:,,paused:,')
  lanes = {seen = {}, credit = {}, paused = {}}
  for lane = 1, LANE_COUNT do
    lanes.seen[lane] = found[3 + LANE_COUNT + lane]
    lanes.credit[lane] = tonumber(found[3 + 2 * LANE_COUNT + lane]) or 0
    lanes.paused[lane] = found[3 + 3 * LANE_COUNT + lane] ~= false
  end
  return lanes
end

local function save_seen(moved, fresh)
  if fresh == 0 then return end
  local words = {'HSET', SCHED}
  for lane in pairs(moved) do
    words[#words + 1] = 'seen:' .. lane
    words[#words + 1] = lanes.seen[lane]
  end
  call(unpack(words))
  call('HINCRBY', SCHED, 'staged', fresh)
end

-- Returns how many are new in the ready set, their bytes, the largest, how many were never staged before, and how many
-- have ended because they must not run: later, one that is too large would be copied a second time.
local function stage_lane(lane, entries, seen, moved)
  local add, bytes, largest, fresh, ended = {'ZADD', ready_key(lane)}, 0, 1, 0, 0
  local shared = some_tenants and tenants()
  local rows = shared and shared.shares(lane) and {} or nil
  for _, item in ipairs(entries) do
    local member, ms = member_and_ms(item[1])
    if ms > now_ms() then keep_enqueued_ms(lane, item[1]) end
    local size, deadline, _, tenant, if_late, session = skim_entry(lane, item[1], item[2])
    bytes, largest = bytes + size, math.max(largest, size)
    local again = seen[lane] and member <= seen[lane]
    if not again then
      seen[lane], moved[lane], fresh = member, true, fresh + 1
      count('staged')
    end
    if again and is_tracked(lane, item[1]) then   -- it stays where it is
    elseif not again and unfit(size, deadline) then
      end_unfit(lane, item[1], item[2])
      ended = ended + 1
    elseif if_late == 'refuse' and not again and deadline and refuse(lane, item[1], item[2], deadline, #add / 2 - 1, tenant, rows) then
      ended = ended + 1
    else
      local rank = AFFINITY.rank(lane, item[1], deadline, item[2])
      add[#add + 1] = rank
      add[#add + 1] = member
      find_home(lane, item[1], rank, item[2], session, size)
      if tenant then rows = rows or {} end
      if rows then rows[#rows + 1] = {item[1], rank, tenant or false, item[2], not again and #add / 2 - 1 or nil} end
    end
  end
  if rows and #rows > 0 and tenants() then tenants().add_all(lane, rows) end
  return #add > 2 and call(unpack(add)) or 0, bytes, largest, fresh, ended
end

local MOST_ENDED = 100   -- ending one costs as much as staging ten

-- Bounded in entries and bytes, because XREADGROUP copies bodies into Lua; the chunk grows with the sizes seen, so that
-- a few huge bodies cannot stall the server together. First some of every lane, because each has its share; then urgent
-- lanes first: if the bound cuts one short, less urgent entries must not be taken instead. `waiting`: number that wait
-- in each lane; increased here. `first`: one new entry of each lane. Returns how many were staged, the lane that was cut
-- short, or nil, which lanes have more, and how many have ended.
local function stage(limits, waiting, first)
  local lane_of, more = {}, {}
  for lane = 1, LANE_COUNT do lane_of[lane_key(lane)] = lane end
  local staged, bytes, largest, fresh, ended, moved = 0, 0, 1, 0, 0, {}
  local function bring(streams, chunk)
    for _, stream in ipairs(streams) do
      local lane, entries = lane_of[stream[1]], stream[2]
      local added, size, most, unseen, unfit_ones = stage_lane(lane, entries, look_at_lanes().seen, moved)
      waiting[lane], staged, fresh = waiting[lane] + added, staged + #entries, fresh + unseen
      bytes, largest, ended = bytes + size, math.max(largest, most), ended + unfit_ones
      more[lane] = #entries == chunk or nil
    end
  end
  local function fitting(most) return math.max(1, math.min(most, 64, MOST_UNSEEN, math.floor(CHUNK_BYTES / largest))) end
  bring(first, 1)
  local cut, chunk = nil, fitting(math.max(2, math.floor(limits.n / 8)))
  if next(more) then
    local begun = more
    more = {}
    bring(read_new(chunk, begun), chunk)
  end
  for lane = 1, LANE_COUNT do
    while more[lane] and not cut do
      if staged >= limits.stage_entries or bytes >= cfg.copied_bytes or ended >= MOST_ENDED then cut = lane; break end
      chunk = fitting(chunk * 2)
      more[lane] = nil
      bring(read_new(chunk, {[lane] = true}), chunk)
    end
  end
  save_seen(moved, fresh)
  return staged, cut, more, ended
end
