-- @include hooks
-- Tidy what is known of homes, a bounded part in each call: what waits for a worker that asks for nothing is anybody's from
-- now on; what was left over, and what nobody has used for long, is forgotten.
-- KEYS: shared. ARGV: 1 configuration. Returns nothing.
look_at_queue()
if some_sessions and homes() then
  require_types()
  open_for_writes()
  -- @guard tidy_homes: homes are looked after
  homes().tidy()
  HOOKS.write_changes()
end
