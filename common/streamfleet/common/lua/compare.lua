-- @include places
-- @include counters
-- Compare what the queue's keys say of each other: the places of all delivered entries, the counters, and the sets of what waits with
-- a label in one lane, or what is known of interrupted requests. What is certain is set right here. A lane whose entries have not
-- each one place is only told: its sets are made anew (reconcile.lua).
-- KEYS: shared. ARGV: 1 configuration; 2 '0' to look only, '1' to mend, 'streams' to mend the counters by the streams' own count too,
--   'all' to do so although not all places can be counted, once each entry was examined; 3 lane whose labels to compare, or 0 for
--   interrupted requests; then what the keys of its sets have behind the ready set's, where the caller knows more than the names
--   that are known here.
-- Returns findings as a flat list of kind and name; `differs`, and `mending`, which is no finding, are of a lane.
local MOST, labels_of, waiting, delayed = 64, tonumber(ARGV[3]), lane_lengths(), call('ZCARD', DELAYED)
local outstanding, placed, exact, fits, by_lane = 0, 0, true, true, delayed_by_lane(delayed)
local lanes = look_at_queue('ahead:,staged:,again:,mending:,')
local function of_lane(place, lane) return lanes[3 + place * LANE_COUNT + lane] end
local number = sets and labels_of > 0 and not of_lane(3, labels_of) and sets.count(labels_of, 4)
if number then waiting[labels_of] = waiting[labels_of] - order().length(labels_of) + number.t + number.b + number.h + number.held end

for lane = 1, LANE_COUNT do
  local staged, making = given_id(of_lane(1, lane)), of_lane(3, lane)
  local row, last, group, first, held = sums_of(lane, waiting[lane], MOST)
  local length, waits, running, nobody, undelivered = unpack(row)
  local back, whole = check_group(lane, staged, last, group, first, held), undelivered >= 0
  local gap, many = length - waits - running - nobody - math.max(0, undelivered), by_lane and by_lane[lane] or 0
  local twins = lane == labels_of and number and number.twins ~= number.b
  outstanding, placed = outstanding + length, placed + waits + running
  if making then note('mending', LANE_NAMES[lane]) else check_clock(lane, staged) end
  exact = exact and whole and by_lane and not (making or back or of_lane(2, lane) and nobody > 0)
  -- @guard compare: each delivered entry has one place
  if not (making or back) and (twins or gap < many or by_lane and whole and gap > many) then
    note('differs', LANE_NAMES[lane])
    fits = false
  end
end
if not fits and delayed > 0 then note('odd', 'delayed') end
if number and sets.keep(labels_of, number) then note('labels_off', LANE_NAMES[labels_of]) end
if sets then sets.begin() end
if labels_of == 0 then check_interrupted() end
balance(outstanding, outstanding - placed - delayed, fits and (exact or ARGV[2] == 'all'))
if mend then HOOKS.write_changes() end
return findings
