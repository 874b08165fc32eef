-- @include entry
-- Looks for an entry that came by a plain XADD, which leaves no record of its id. Returns the lane, the stream id and the
-- parsed fields, or nothing; a fourth value if there is more than one call reads: where to go on.
-- `from`: '<lane number> <stream id>' to look behind, or ''.
local MOST_SEARCHED_BYTES = 524288

local function search(id, from)
  local first, last = string.match(from, '^(%d+) (%S+)$')
  local bytes, looked, chunk = 0, 0, 1
  for lane = tonumber(first or 1), LANE_COUNT do
    local behind, rows = last and '(' .. last or '-', nil
    last = nil
    repeat
      rows = redis.pcall('XRANGE', lane_key(lane), behind, '+', 'COUNT', chunk)
      if rows.err then break end   -- of another type, or behind the last of all stream ids
      for _, row in ipairs(rows) do
        local size, _, given = skim_entry(lane, row[1], row[2])
        bytes, looked, behind = bytes + size + 100, looked + 1, '(' .. row[1]
        if given == id then return lane, row[1], read_entry(lane, row[1], row[2]) end
      end
      -- @guard cancel: a long queue is looked through in bounded calls
      if bytes > MOST_SEARCHED_BYTES then return nil, nil, nil, lane .. ' ' .. string.sub(behind, 2) end
      chunk = bytes == 0 and 1 or math.max(1, math.min(chunk * 2, 128, math.floor(CHUNK_BYTES * looked / bytes)))
    until #rows == 0
  end
end
