-- @include repair_common
-- First part of a repair: entries that were delivered, and what is pending.
-- An entry that was delivered once, and is neither ready nor delayed nor pending: no pull would ever find it.
local function look_at_entry(lane, id, fields)
  if HOOKS.waits(lane, id, fields) or is_delayed(lane, id) or pending_row(lane, id) then return end
  note('nowhere', entry_name(lane, id))
  if mend then
    local _, _, ended = come_back(lane, id, fields)
    made_ready = made_ready + 1 - ended
  end
end

local function look_at_lane(lane, after, most)
  local function look(id, fields) look_at_entry(lane, id, fields) end
  return read_lane(lane, after, delivered_up_to(lane), most, most_bytes, look)
end

local function look_at_pending(lane, after, most)
  local _, there = delivered_up_to(lane)
  if not there then return '' end
  local start = start_behind(after)
  local rows = start and call('XPENDING', lane_key(lane), GROUP, start, '+', most) or {}
  for _, row in ipairs(rows) do
    -- @guard repair: running ones in bounded calls
    if bytes >= most_bytes then return after end
    after = row[1]
    if not fetch_counted(lane, after) then
      note('pending_gone', entry_name(lane, after))
      -- @guard repair: deleted ones that run go
      if mend then erase(lane, after) end
    end
  end
  return #rows < most and '' or after
end
