-- @include hooks
-- Homes that the caller found to be lost: what waits for them is anybody's from now on, a bounded part in each call.
-- KEYS: shared. ARGV: 1 configuration; 2 number of all fields of `sessions` if none is of a session, else ''; then of each home its
--   number and its state in `sessions`, '' for none. Returns nothing.
look_at_queue()
if some_sessions and homes() then
  require_types()
  open_for_writes()
  for i = 3, #ARGV, 2 do homes().lose_silent(tonumber(ARGV[i]), ARGV[i + 1]) end
  if homes().spilled then wake(homes().spilled) end
  if ARGV[2] ~= '' then homes().end_homing(tonumber(ARGV[2])) end
  HOOKS.write_changes()
end
