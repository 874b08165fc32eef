-- @include tenant_index
-- @include tenant_charges
-- @include tenant_lengths
-- Tenants share a lane by tokens. Of those that wait, the one that was charged least for its weight goes first; within a
-- tenant, the earliest deadline. A request is charged when it is picked, settled when it ends, and refunded when it
-- returns. The keys:
--   waiting: '<lane><tenant>\0<rank><member of ready>\0<bytes of the body> <asked limit>' of what is ready, by name.
--   turns:<lane>: tenants by the tokens that they were charged for their weight; below zero while they do not wait.
--   served: 't|<tenant>' its record, packed numbers; 'c|<lane>|<id>' a charge; 'l|<tenant>' lengths; 'level|<lane>' the
--     most tokens that a tenant had when it was picked; 'walk|<lane>' how far the index is made of what was ready before
--     there was one; 'known' the number of records.
--   tenants: tenant to '<weight> <most running at once> <when it was set> <API key or ->', by operators and gateways.
-- While nobody gives a tenant, none of these keys exists, and LANES has no field `tenants`, which is all that is asked.
local usable = call_if_typed('HLEN', SERVED) and call_if_typed('ZCARD', WAITING)
for lane = 1, LANE_COUNT do usable = usable and call_if_typed('ZCARD', turns_key(lane)) end
-- @guard tenants: keys of another type are left alone
if not usable then return false end
local t = {}
add_index(t)
add_charges(t)
add_lengths(t)
return t
