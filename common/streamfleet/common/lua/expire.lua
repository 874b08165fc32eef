-- @include late
-- End queued requests when their deadline passes, not only when their turn comes. Each lane is looked through in three parts,
-- each with bounds of its own, so that no backlog hides deadlines of another: what has no label; what is held, and then, home by
-- home, what waits there without a tenant; and the tenants whose deadlines may have passed, as :late and :past say.
-- KEYS: shared. ARGV: 1 configuration; 2 most entries to examine, and 3 most to end, in each part; 4 JSON [position…].
-- Returns {ended, 1 if a bound cut the look short, two positions of each lane: the rank (ms) up to which the first part has been
--   examined; the same of the second part, and if that was cut short ' <rank of its end> <home, 0 for what is held> <rank>'}.
require_types()
open_for_writes()
local reached, places = {}, cjson.decode(ARGV[4])
o = ordering()
for lane = 1, LANE_COUNT do
  reached[2 * lane - 1] = in_bounds(end_late_in, lane, ready_key(lane), places[2 * lane - 1] or '-inf', now) or behind
  reached[2 * lane] = o and in_bounds(end_late_of_homes, lane, places[2 * lane]) or behind
  if o then in_bounds(end_late_of_tenants, lane) end
end
write_counts()
return {ended, cut, unpack(reached)}
