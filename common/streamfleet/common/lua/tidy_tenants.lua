-- @include tenant_upkeep
-- Tidy what is known of tenants, a bounded part in each call: turns and charges are brought to what is there, limits that
-- operators have set count from now on, and tenants that have gone are forgotten.
-- KEYS: shared. ARGV: 1 configuration. Returns nothing.
if sharing() then
  require_types()
  open_for_writes()
  tidy_tenants()
  HOOKS.write_changes()
end
