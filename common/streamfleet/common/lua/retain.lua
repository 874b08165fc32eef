-- @include keys
-- Let go of what has been kept for long enough: dead letters beyond their life.
-- KEYS: shared. ARGV: 1 configuration; 2 how many to delete at most, as far as Redis deletes by the node.
-- Returns how many were deleted.
local oldest = string.format('%.0f', math.max(0, now_ms() - cfg.dead_ttl_ms))
local deleted = call('XTRIM', DEAD, 'MINID', '~', oldest, 'LIMIT', ARGV[2])
-- Whole nodes go above; of the one that is left, some may be too old as well.
if deleted == 0 then deleted = call('XTRIM', DEAD, 'MINID', '=', oldest) end
return deleted
