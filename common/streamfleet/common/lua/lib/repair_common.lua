-- @include come_back
-- @include info
-- Common part of repairs: the place of an entry, and the group that has to deliver it. Nothing here raises if a lane or
-- its group is missing.
local mend, most_bytes = ARGV[2] == '1', tonumber(ARGV[7])
local bytes, made_ready, found = 0, 0, {}

local last_delivered = {}

local function delivered_up_to(lane)
  if not last_delivered[lane] then
    local group = group_of(lane)
    last_delivered[lane] = {group ~= nil, group and named(group, 'last-delivered-id') or '0-0'}
  end
  return last_delivered[lane][2], last_delivered[lane][1]
end

local function delivered(lane, id) return encode_id(id) <= encode_id(delivered_up_to(lane)) end

local function pending_row(lane, id)
  local _, there = delivered_up_to(lane)
  return there and call('XPENDING', lane_key(lane), GROUP, id, id, 1)[1] or nil
end

local function is_delayed(lane, id) return call('ZSCORE', DELAYED, entry_field(lane, id)) end

local function note(kind, name)
  found[#found + 1] = kind
  found[#found + 1] = name
end

-- The entry's body is gone and cannot be restored, so every trace of it is removed, and it is counted once.
local function erase(lane, id)
  local row = pending_row(lane, id)
  -- @guard repair: what nobody held was never staged
  if row and row[2] == NOBODY then count_staged(lane, id) end
  HOOKS.left(lane, id)
  -- @guard repair: every trace of a deleted one goes
  call('ZREM', DELAYED, entry_field(lane, id))
  remove_entry(lane, id)
  -- @guard repair: what vanished is counted
  count('vanished')
end

local function fetch_counted(lane, id)
  local fields = fetch_fields(lane, id)
  for _, text in ipairs(fields or {}) do bytes = bytes + #text end
  return fields
end
