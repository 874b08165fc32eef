-- @include keys
-- Delete dead letters that are older than their retention.
-- KEYS: shared. ARGV: 1 configuration; 2 most letters to delete, as far as Redis deletes by the node.
-- Returns how many were deleted.
local oldest = string.format('%.0f', math.max(0, now_ms() - cfg.dead_ttl_ms))
local deleted = call('XTRIM', DEAD, 'MINID', '~', oldest, 'LIMIT', ARGV[2])
-- Whole nodes are deleted above; the first remaining node may also hold old letters.
-- @guard retain: to the last one
if deleted == 0 then deleted = call('XTRIM', DEAD, 'MINID', '=', oldest) end
return deleted
