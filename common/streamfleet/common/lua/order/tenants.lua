-- @include charges
-- Tenants share a lane by tokens. Of those that wait, the one that was charged least for its weight goes first; within a
-- tenant, the earliest rank. A run is charged when it is picked, and settled when it ends; only then its charge is added to
-- what its tenant was charged in all. The keys:
--   turns:<lane>: tenants by the tokens that they were charged for their weight; below zero while they are not in turn.
--   served: 't|<tenant>' its record, packed numbers; 'c|<lane>|<id>' a charge; 'l|<tenant>' lengths; 'level|<lane>' the
--     most tokens that a tenant had when it was picked in its turn; 'new|<lane>' where the next name without history starts;
--     'usual' what requests without a tenant cost; 'known' the number of records.
--   tenants: tenant to '<weight> <most running at once> <when it was set> <API key or ->', by operators and gateways.
-- While nobody gives a tenant, none of these keys exists, and LANES has no field `tenants`.
local usable = call_if_typed('HLEN', SERVED)
for lane = 1, LANE_COUNT do usable = usable and call_if_typed('ZCARD', KEYS[2 * LANE_COUNT + lane]) end
-- @guard tenants: keys of another type are left alone
if not usable then return false end

-- A tenant is there.
function t.begin()
  if some_tenants then return end
  some_tenants = t.rules()
  call('HSET', LANES, 'tenants', some_tenants)
end

-- Everything that has changed is written. Each script does this once, at its end.
function t.flush()
  write_records()
  for lane = 1, LANE_COUNT do if next(moved[lane]) then write_turns(lane) end end
  if more[1] or next(changed) then write_fields() end
  -- @guard tenants: somebody is woken for who may run one more
  if t.unblocked then wake(t.unblocked) end
end

return t
