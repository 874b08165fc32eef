-- @include repair_common
-- Second part of a repair: members of the ready sets, of the delayed ones, and the attempts.
-- An entry that a worker holds, or that was never delivered, does not wait; one that NOBODY holds keeps waiting.
local function keep_once(lane, id, remove)
  local row = pending_row(lane, id)
  if row and row[2] == NOBODY then call('XACK', lane_key(lane), GROUP, id) else remove() end
end

-- A member of a ready set, or of the delayed ones: `remove` takes it out of that set.
local function look_at_waiting(lane, id, name, kind, elsewhere, remove)
  if not id then
    note(kind .. '_odd', name)
    -- @guard repair: odd members go
    if mend then remove() end
  elseif not fetch_counted(lane, id) then
    note(kind .. '_gone', entry_name(lane, id))
    -- @guard repair: deleted ones that wait go
    if mend then erase(lane, id) end
  elseif elsewhere(lane, id) or pending_row(lane, id) or not delivered(lane, id) then
    note(kind .. '_twice', entry_name(lane, id))
    if mend then keep_once(lane, id, remove) end
  end
end

local function look_at_ready(lane, member)
  -- @guard repair: listed, and gone since
  if not call('ZSCORE', ready_key(lane), member) then return end
  local id = decode_id(member)
  local sound = id and encode_id(id) == member and id or nil
  look_at_waiting(lane, sound, member, 'ready', is_delayed, function() call('ZREM', ready_key(lane), member) end)
end

local function look_at_delayed(_, member)
  -- @guard repair: listed as delayed, and gone since
  if not call('ZSCORE', DELAYED, member) then return end
  local lane, id = lane_and_id(member)
  local function nowhere_else() return false end   -- of two, the entry in the delayed set stays
  look_at_waiting(lane, id, member, 'delayed', nowhere_else, function() call('ZREM', DELAYED, member) end)
end

local function look_at_attempts(_, field)
  local lane, id = lane_and_id(field)
  -- @guard repair: attempts of what is there stay
  if lane and fetch_counted(lane, id) then return end
  note('tries_gone', field)
  -- @guard repair: attempts of what is gone go
  if mend then call('HDEL', ATTEMPTS, field) end
end
