-- @include come_back
-- Takes a waiting entry out of its lane, because its result was written just now.

-- Returns true if the entry can leave its lane, and true if a watcher's read delivered it. It stays while a worker has
-- it, and if a key that was overwritten would refuse a write halfway through.
local function can_leave(lane, entry_id)
  local row = redis.pcall('XPENDING', lane_key(lane), GROUP, entry_id, entry_id, 1)[1]   -- the group may be missing
  if row and row[2] ~= NOBODY or not pcall(require_types) then return false end
  return true, row ~= nil
end

-- An entry that no pull has staged is counted as staged here, because nothing else will count it.
local function take_out(lane, entry_id, entry, delivered)
  local staged = given_id(call('HGET', LANES, 'staged:' .. LANE_NAMES[lane]))
  if delivered then
    -- @guard cancel: what a watcher has was not staged yet
    count_staged(lane, entry_id, entry.fields)
  elseif not (HOOKS.waits(lane, entry_id, entry.fields) or call('ZSCORE', DELAYED, entry_field(lane, entry_id))
      or staged and encode_id(entry_id) <= encode_id(staged)) then
    -- @guard cancel: counted as staged where no pull staged it
    count('staged')
  end
  -- @guard hooks: a cancelled request waits no more
  HOOKS.left(lane, entry_id, entry.fields)
  -- @guard cancel: no longer delayed
  call('ZREM', DELAYED, entry_field(lane, entry_id))
  discard_duplicate(lane, entry_id, entry)
  write_counts()
end
