-- @include finish
-- Cancel a request, wherever it is: its result is written now. A queued entry that can be found leaves its lane at once. Any
-- other entry is dropped when its turn comes, a running one by its worker, which reads the stream of cancels: until then
-- the result lives as long as the record of a request that waits.
-- KEYS: shared; its result; its reply stream (its result again when it has none); its tokens.
-- ARGV: 1 configuration; 2 request id; 3 reply name or ''; 4 error JSON; 5 its entry, <lane>:<stream id>, where known.
-- Returns 1 cancelled; 0 it had already ended.
local id = ARGV[2]

-- Returns the lane, the stream id and what the fields say; nothing where the record is wrong: it may be anybody's work.
local function find_entry()
  local name, given = string.match(ARGV[5], '^(%a+):(%d+%-%d+)$')
  for lane = 1, name and LANE_COUNT or 0 do
    if LANE_NAMES[lane] == name then
      local found, rows = pcall(call, 'XRANGE', lane_key(lane), given, given)
      local row = found and rows[1]
      local entry = row and read_entry(lane, row[1], row[2])
      if entry and entry.id == id then return lane, row[1], entry end
    end
  end
end

-- Returns whether the entry can leave its lane, and whether a watcher's read delivered it. It stays while a worker has it,
-- and where this user's rules, or a key that somebody overwrote, would refuse a write halfway through.
local function can_leave(lane, entry_id)
  local rows = redis.pcall('XPENDING', lane_key(lane), GROUP, entry_id, entry_id, 1)
  if rows.err and not string.find(rows.err, 'NOGROUP', 1, true) then return false end
  local row = rows[1]
  if row and row[2] ~= NOBODY or not pcall(require_types) then return false end
  for _, harmless in ipairs({{'XDEL', lane_key(lane), '0-0'}, {'ZREM', ready_key(lane), ''}, {'HDEL', TRIES, ''}}) do
    if type(redis.pcall(unpack(harmless))) == 'table' then return false end
  end
  return true, row ~= nil
end

-- An entry that no pull has staged is counted as staged here, as it never will be elsewhere.
local function take_out(lane, entry_id, entry, delivered)
  local member, seen = encode_id(entry_id), call('HGET', SCHED, 'seen:' .. lane)
  if delivered then
    count_staged(lane, entry_id)
  elseif not (call('ZSCORE', ready_key(lane), member) or call('ZSCORE', DELAYED, tries_field(lane, entry_id))
      or seen and member <= seen) then
    count('staged')
  end
  call('ZREM', ready_key(lane), member)
  call('ZREM', DELAYED, tries_field(lane, entry_id))
  settle(lane, entry_id, entry)
  write_counts()
end

open_for_writes()   -- first: who may not write results has nothing else refused
local lane, entry_id, entry = find_entry()
local leaves, delivered = false, false
if lane then leaves, delivered = can_leave(lane, entry_id) end
local reply = ARGV[3] ~= '' and ARGV[3] or leaves and entry.reply   -- first: a refusal here leaves the entry to a pull
-- Of an entry that cannot be found, only what was streamed already tells that there are readers.
local read = redis.pcall('EXISTS', KEYS[21]) == 1
if entry then read = streamed(entry) end
local tokens = read and {} or nil
local values = {'error', ARGV[4], 'http_status', HTTP_STATUS.cancelled, 'finished_ms', string.format('%.0f', now_ms())}
if tokens then values[#values + 1], values[#values + 2] = 'streamed', '0' end
if not publish(id, 'cancelled', values, reply, nil, nil, tokens, cfg.record_ttl_ms) then return 0 end
tell(CANCELS, 'MAXLEN', '~', 10000, '*', 'id', id)
if leaves then take_out(lane, entry_id, entry, delivered) end
return 1
