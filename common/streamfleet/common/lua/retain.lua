-- @include entry
-- Delete dead letters that are older than their retention, and what is known of interruptions of entries that are gone:
-- a worker of a release before there were any finishes such an entry, and leaves that.
-- KEYS: shared. ARGV: 1 configuration; 2 most letters to delete, as far as Redis deletes by the node.
-- Returns how many were deleted.
local oldest = string.format('%.0f', math.max(0, now_ms() - cfg.dead_ttl_ms))
local deleted = call('XTRIM', DEAD, 'MINID', '~', oldest, 'LIMIT', ARGV[2])
-- Whole nodes are deleted above; the first remaining node may also hold old letters.
-- @guard retain: to the last one
if deleted == 0 then deleted = call('XTRIM', DEAD, 'MINID', '=', oldest) end
if call_if_typed('HGET', SCHED, 'interrupted') then
  for _, field in ipairs(call('HRANDFIELD', SCHED, 16)) do   -- some of them: others come with the next calls
    local lane, id = lane_and_id(string.match(field, '^interrupted:(.*)') or '')
    -- @guard retain: of entries that are gone
    if id and not fetch_fields(lane, id) then forget_interruptions(lane, {id}) end
  end
end
return deleted
