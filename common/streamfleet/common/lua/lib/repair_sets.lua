-- @include repair_common
-- Second part of a repair: members of the ready sets, of the delayed ones, and the attempts.
-- A member of a ready set, or of the delayed ones. It goes if a worker holds its entry, or none was given it yet; of two, the
-- delayed one stays.
local function look_at_member(kind, key, member, lane, id)
  -- @guard repair: listed, and gone since
  if not call('ZSCORE', key, member) then return end
  if not id then
    note(kind .. '_odd', member)
    -- @guard repair: odd members go
    if mend then call('ZREM', key, member) end
    return
  end
  if not fetch_counted(lane, id) then
    note(kind .. '_gone', entry_name(lane, id))
    -- @guard repair: deleted ones that wait go
    if mend then erase(lane, id) end
    return
  end
  local row = pending_row(lane, id)
  if not row and delivered(lane, id) and (key == DELAYED or not is_delayed(lane, id)) then return end
  note(kind .. '_twice', entry_name(lane, id))
  if not mend then return end
  if row and row[2] == NOBODY then call('XACK', lane_key(lane), GROUP, id) else call('ZREM', key, member) end
end

local function look_at_ready(lane, member)
  local id = decode_id(member)
  look_at_member('ready', ready_key(lane), member, lane, id and encode_id(id) == member and id or nil)
end

local function look_at_delayed(_, member) look_at_member('delayed', DELAYED, member, lane_and_id(member)) end

local function look_at_attempts(_, field)
  local lane, id = lane_and_id(field)
  -- @guard repair: attempts of what is there stay
  if lane and fetch_counted(lane, id) then return end
  note('tries_gone', field)
  -- @guard repair: attempts of what is gone go
  if mend then call('HDEL', ATTEMPTS, field) end
end
