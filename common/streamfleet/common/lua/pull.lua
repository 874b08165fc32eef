-- @include finish
-- @include lease
-- @include pull_stage
-- @include pull_choose
-- @include pull_take
-- @include pull_roles
-- Give a worker the best waiting requests: stage arrivals, choose lanes, take in order of rank.
-- KEYS: shared. ARGV: 1 configuration; 2 worker; 3 n (0: only stage); 4 owed (as rooms, for a lane that is owed a pick);
--   5 free (number of requests that have a slot without interrupting another); 6 patient (the first lane that leaves
--   room for urgent ones); 7 most entries to stage; 8 '1' if this worker held a watch; 9 '1' if it took a wake-up, and must
--   hand it on if it has no room; 10 life of a watch, ms; 11 if deadlines are judged JSON {class of length = ms
--   that this worker's requests of it take at least}, else ''; 12 start of this worker's cache, '' for who is no home; 13
--   number of requests that it has; then rooms (for each lane: it is open until so many of all
--   lanes are taken; at most n); then hints (lane or 0 for wake, and id, of each entry from a blocking read).
-- Returns {claims, ready, role, now, staged, dropped, ms until more may be taken or ''}; a claim is {lane, stream id, attempt, request id, fields, lost,
--   staged, interrupted, length, passed}: lost is the number of attempts lost with their workers, staged the time of staging (epoch ms)
--   if the stream id was ahead of the clock, else '', interrupted what is known of earlier runs, or '', length the
--   class if its deadline was judged, else '', passed the ms for which it was passed over, or ''; role: 0 pull again when there
--   is room, 1 watch (blocking read of wake and lanes), 2 bench (pop a token), 3 listen (blocking read of wake and the
--   lanes with room), 4 stand by (pop a token of those that have room for some lanes only).
local arg = read_wishes()
local waiting = require_types()
local handed = held_by_nobody(arg.hints)
open_for_writes()
local first = read_new(1)   -- raises NOGROUP for any lane before any write
local now = now_ms()
-- A worker that asks for work stops watching, even if the answer that made it a watcher was lost.
-- @guard pull: who asks for work watches no more
if arg.watching or arg.owing or arg.n > 0 then call('ZREM', WATCH, arg.worker) end
look_at_lanes()
AFFINITY.meet(arg)
local back, ended = put_back(arg.hints, handed, waiting)
local staged, cut, more, unfit_ones = stage(arg, waiting, first)
-- @guard put back: counts as something moved
staged = staged + back
AFFINITY.meet(arg)
local claims, dropped = {}, 0
if arg.n > 0 then claims, dropped = take(arg, waiting, cut, more) end
dropped = dropped + unfit_ones + ended
-- @guard pull: counts are written
write_counts()
local moved = #claims + dropped + staged > 0
local ready, soonest = sum(waiting), nil
if homing() then ready, soonest = homes().left(waiting, arg, #claims) end
local role = assign_role(arg, waiting, #claims, cut, moved, now)
if homing() then homes().done(arg, role, #claims) end
return {claims, ready, role, string.format('%.0f', now), staged, dropped, soonest or ''}
