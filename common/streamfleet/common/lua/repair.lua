-- @include repair_lanes
-- @include repair_sets
-- @include wake
-- Examine a part of the queue for damage that only commands by hand can do, and repair what is certain: each decision
-- and its change happen in this one call.
-- KEYS: shared. ARGV: 1 configuration; 2 '1' to repair, '0' to look only; 3 part: lane, pending, counts, ready, firsts, delayed,
--   tickets, tries or interrupted; 4 lane number (0 for those of the whole queue); 5 stream id to continue behind, or ''
--   (lane, pending), or the suffix of a set's key (ready), which is what it has behind the ready set's; 6 most entries; 7 most
--   bytes of entries, because looking at one copies it; then the members or fields to examine, or suffixes of keys (counts).
-- Returns {stream id to continue behind, '' at the end (lane, pending), or the number of examined members; findings as
--   a flat list of kind and name}.
if mend then open_for_writes() end
local part, lane = ARGV[3], tonumber(ARGV[4])

local function look_at_members(look)
  for i = 8, #ARGV do
    -- @guard repair: members in bounded calls
    if bytes >= most_bytes then return i - 8 end
    look(lane, ARGV[i], ARGV[5])
  end
  return #ARGV - 7
end

local by_member = {ready = look_at_ready, firsts = labels and labels.look_at_first, delayed = look_at_delayed, tickets = look_at_ticket,
  tries = look_at_attempts}
local reached
if part == 'lane' then
  reached = look_at_lane(lane, ARGV[5], tonumber(ARGV[6]))
elseif part == 'pending' then
  reached = look_at_pending(lane, ARGV[5], tonumber(ARGV[6]))
elseif part == 'interrupted' then
  look_at_interrupted()
elseif part == 'counts' then
  if labels then labels.look_at_counts(lane) end
else
  if part == 'ready' and labels then labels.look_at_set(lane, ARGV[5]) end
  reached = look_at_members(by_member[part])
end
write_counts()
-- @guard repair: somebody is woken
if made_ready > 0 then wake() end
return {reached or 0, found}
