-- @include entry
-- @include info
-- Looks for an entry that came by a plain XADD, which leaves no record of its id. Returns the lane, the stream id and the
-- parsed fields, or nothing; a fourth value if there is more than one call reads: where to go on.
-- `from`: '<lane number> <stream id>' to look behind, or ''.
local MOST_SEARCHED, MOST_SEARCHED_BYTES = 4096, 524288   -- of each lane

local function search(id, from)
  local first, last = string.match(from, '^(%d+) (%S+)$')
  for lane = tonumber(first or 1), LANE_COUNT do
    local entry
    local reached = read_lane(lane, last or '', '+', MOST_SEARCHED, MOST_SEARCHED_BYTES, function(entry_id, fields)
      local _, _, given = skim_entry(lane, entry_id, fields)
      entry = given == id and read_entry(lane, entry_id, fields)
      return entry
    end)
    last = nil
    if entry then return lane, reached, entry end
    -- @guard cancel: a long queue is looked through in bounded calls
    if reached ~= '' then return nil, nil, nil, lane .. ' ' .. reached end
  end
end
