-- @include pull_take
-- @include pull_roles
-- Give a worker the best waiting requests: stage arrivals, choose lanes, take in order of rank.
-- KEYS: shared; the string `pace`; this worker's list of wake-ups.
-- ARGV: 1 configuration; 2 worker; 3 numbers, as little-endian doubles: n (0: only stage); free (number of
--   requests that have a slot without interrupting another); most entries to stage; 1 if this worker waited, and must hand on
--   what it was woken for if it has no room; life of a watch, ms; number of requests that it has; then rooms (for each lane: it is open until so many of all lanes are taken; at
--   most n); then owed (as rooms, for a lane that is owed a pick); 4 if deadlines are judged JSON {class of length = ms that
--   this worker's requests of it take at least}, else ''; 5 start of this worker's cache, '' for who is no home; then hints
--   (lane or 0 for wake, and id, of each entry from a blocking read).
-- Returns {claims, ready, role, now, staged, dropped, ms until more may be taken or ''}; a claim is {lane, stream id, attempt,
--   request id, fields, lost, staged, interrupted, length, passed}: lost is the number of attempts lost with their workers,
--   staged the time of staging (epoch ms) if the stream id was ahead of the clock, interrupted what is known of earlier runs,
--   length the class if its deadline was judged, passed the ms for which it was left to another worker, each else ''; role: 0
--   pull again when there is room, 1 watch (blocking read of wake and the lanes with room), 2 wait (pop a token of its list).
local arg = read_wishes()
local waiting = require_types(true)
open_for_writes()
-- A worker that asks for work waits no more, even if the answer by which it waited was lost. Staging alone ends no wait.
-- @guard pull: who asks for work waits no more
if arg.owing or arg.n > 0 then
  call('ZREM', WAITING, arg.worker)
  call('ZREM', WATCH, arg.worker)
else
  call('ZCARD', WATCH)
end
local first = read_new(arg.first)   -- raises NOGROUP for any lane before anything moves
local now = now_ms()
if first[1] or arg.hints[1] or sum(waiting) > 0 then look_at_lanes() end
TURNS.meet(arg)
local back, ended = put_back(arg.hints, waiting)
local staged, cut, more, unfit_ones = 0, nil, nil, 0
if first[1] then staged, cut, more, unfit_ones = stage(arg, waiting, first) end
-- @guard put back: counts as something moved
staged = staged + back
if staged > 0 then TURNS.meet(arg) end   -- the first of all sessions may have come
local claims, dropped = take(arg, waiting, cut, more)
dropped = dropped + unfit_ones + ended
-- @guard pull: counts are written
write_counts()
local moved = #claims + dropped + staged > 0
local ready, soonest = TURNS.left(waiting, is_paused, arg, #claims)
ready = ready or sum(waiting)
-- Something was not looked at: it is not staged yet, or what ended here held it up.
local again = cut and #claims < arg.rooms[cut] or dropped > 0 and ready > 0
local role = assign_role(arg, waiting, #claims, again, moved, ready == 0)
TURNS.done(arg, role, #claims)
return {claims, ready, role, now, staged, dropped, soonest or ''}
