-- @include keys
-- The fence: attempt number if this worker still holds the entry (in this very attempt, when given), else nil.
local function held(lane, id, worker, attempt)
  local row = call('XPENDING', lane_key(lane), GROUP, id, id, 1, worker)[1]
  if row and (not attempt or row[4] == attempt) then return row[4] end
end
