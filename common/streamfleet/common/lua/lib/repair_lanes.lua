-- @include repair_common
-- First part of a repair: entries that were delivered, and what is pending.
-- An entry that was delivered once, and is neither ready nor delayed nor pending: no pull would ever find it.
local function look_at_entry(lane, id, fields)
  if is_ready(lane, id) or is_delayed(lane, id) or pending_row(lane, id) then return end
  note('nowhere', entry_name(lane, id))
  if mend then
    local _, _, ended = come_back(lane, id, fields)
    made_ready = made_ready + 1 - ended
  end
end

local function look_at_lane(lane, after, most)
  local last, looked, chunk = delivered_up_to(lane), 0, 1
  while looked < most and bytes < most_bytes do
    local start = start_behind(after)
    local entries = start and call('XRANGE', lane_key(lane), start, last, 'COUNT', chunk) or {}
    for _, entry in ipairs(entries) do
      look_at_entry(lane, entry[1], entry[2])
      for _, text in ipairs(entry[2]) do bytes = bytes + #text end
      looked, after = looked + 1, entry[1]
    end
    if #entries < chunk then return '' end
    chunk = math.max(1, math.min(chunk * 2, most - looked, 64, math.floor(CHUNK_BYTES * looked / math.max(1, bytes))))
  end
  return after
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
