-- @include entry
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
-- While nobody gives a tenant, none of these keys exists, and SCHED has no field `tenants`, which is all that is asked:
-- the functions are made only if it has.
local all_tenants, made_tenants   -- the functions; the same if this call may use them, nil until that is known
-- @begin
made_tenants = nil
-- @end

-- Returns a table of functions; false where one of the keys was overwritten by hand.
local function tenants()
  if made_tenants == nil then
    local usable = call_if_typed('HLEN', SERVED) and call_if_typed('ZCARD', WAITING)
    for lane = 1, LANE_COUNT do usable = usable and call_if_typed('ZCARD', turns_key(lane)) end
    made_tenants = false
    -- @guard tenants: keys of another type are left alone
    if not usable then return false end
    if not all_tenants then
      all_tenants = {begins = {}}
      add_index(all_tenants)
      add_charges(all_tenants)
      add_lengths(all_tenants)
    end
    for _, begin in ipairs(all_tenants.begins) do begin() end
    made_tenants = all_tenants
  end
  return made_tenants
end

-- The same, if a tenant was given lately.
local function sharing()
  if not sched then look_at_sched() end
  return some_tenants and tenants()
end

-- A run ends before its request does: see t.back.
local function refund(lane, id, generated, held)
  local shared = sharing()
  if shared then shared.back(lane, id, generated, held) end
end
