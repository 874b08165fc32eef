-- @include leave
-- @include search
-- Cancel a request in any state: its result is written now. A queued entry that is found leaves its lane at once; a
-- running one is dropped by its worker, which reads the stream of cancels, and one that may not be removed when its turn
-- comes: until then the result lives as long as the record of a waiting request.
-- KEYS: shared; its result; its reply stream (its result again when it has none); its tokens.
-- ARGV: 1 configuration; 2 request id; 3 reply name or ''; 4 error JSON; 5 its entry, <lane>:<stream id>, or what stands in
--   its record; '' without a record, then the lanes are looked through; 6 '<lane number> <stream id>' to look behind, or '';
--   7 for how long a request of this id that is yet to come is cancelled, ms; '' for none.
-- Returns 1 cancelled; 0 it had already ended; 2 the queue has never seen it, and nothing was written; or where to look on.
local id = ARGV[2]

-- Returns the lane, the stream id and the parsed fields; nothing if the record is wrong, because its entry may belong
-- to another request.
local function find_entry(known)
  local name, given = string.match(known, '^(%a+):(%d+%-%d+)$')
  for lane = 1, name and LANE_COUNT or 0 do
    if LANE_NAMES[lane] == name then
      local found, rows = pcall(call, 'XRANGE', lane_key(lane), given, given)
      local row = found and rows[1]
      local entry = row and read_entry(lane, row[1], row[2])
      if entry and entry.id == id then return lane, row[1], entry end
    end
  end
end

open_for_writes()   -- first: a caller that may not write results fails here
local seen = ARGV[5] ~= '' or answered(id)
local lane, entry_id, entry, further = find_entry(seen and ARGV[5] or id)
if not (lane or seen) then
  if usable_name(id) then lane, entry_id, entry, further = search(id, ARGV[6]) end
  -- @guard cancel: what came by a plain XADD is looked for to the end
  if further then return further end
  -- @guard cancel: an id that the queue has never seen blocks nothing
  if not lane and ARGV[7] == '' then return 2 end
end
local life = (lane or seen) and cfg.record_ttl_ms or ARGV[7]
local leaves, delivered = false, false
if lane then leaves, delivered = can_leave(lane, entry_id) end
local reply = ARGV[3] ~= '' and ARGV[3] or leaves and entry.reply   -- first: after a refusal here a pull ends the entry
-- If the entry cannot be found, only tokens that were already streamed show that there are readers.
local read = call('EXISTS', KEYS[SHARED + 3]) == 1
-- @guard tokens: a cancel ends them by the entry
if entry then read = streamed(entry) end
local tokens = read and {} or nil
local given = {error = ARGV[4], streamed = tokens and '0'}
if not publish(id, 'cancelled', given, reply, tokens, life) then return 0 end
-- @guard reused: what is cancelled is known by its body
other_request(id, lane and entry_name(lane, entry_id), entry and entry.reply, entry, life)
-- @guard cancel: workers are told
tell(CANCELS, 'MAXLEN', '~', cfg.notices_cap, '*', 'id', id)
if leaves then take_out(lane, entry_id, entry, delivered) end
return 1
