-- @include home_records
-- @include home_index
-- @include home_upkeep
-- Affinity: a request goes to the worker that has its beginning in its prefix cache, its home. A home is a worker's number;
-- each start of a worker gets a new one, because its cache is empty. The keys:
--   homes: an index beside the ready sets, '<lane><rank><member of ready>', by home: its score is lane * 2^40 + number, number 0
--     for what any worker may take. A member without its entry in the ready set is left over, and dropped when it is met.
--   sessions: 's<hash>' of a session and 'p<hash>' of a beginning of prompts, '<last use, ms> <uses lately> <number>,…';
--     'f<hash>' of a program '<last use, ms> <first arrival, ms> '; 'n|<worker>' '<number> <start>'; 'w|<number>'
--     '<last pull, ms> <what it does> <worker>'; '#' the last number; '^<lane>' '<since, ms> <rank> <member>' of the
--     head of a lane that is passed over, with the lowest rank that others took since; '@<lane>' a place in its ready set.
--   loads: number to what it holds and what waits for it; LOST and more for a home whose requests are anybody's by now.
-- While nobody gives a session, and no two prompts share a long beginning, a pull reads none of these keys: LANES has no field
-- `sessions`, or it is not HOMING. The rules, with the figures behind them, are in docs/locality.md.
local found = call_if_typed('HMGET', SESSIONS, 'n|' .. (ARGV[2] or ''), lane_fields('^,', DIGITS))   -- of the worker that calls, if one does
-- @guard affinity: keys of another type are left alone
if not (found and call_if_typed('ZCARD', HOMES)) then return false end
local h = {}
add_records(h)
add_index(h, ARGV[2] or '', found)
add_upkeep(h)

-- Where the queue ranks by program, a turn goes ahead by its program's age, unless its deadline was given as such.
function h.rank(lane, id, deadline, fields, rank)
  local tenant, session, program, given = '', '', '', nil
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if name == 'tenant' then tenant = value elseif name == 'session' then session = value
    elseif name == 'program' then program = value elseif name == 'deadline' then given = milliseconds(value) end
  end
  -- @guard program: a deadline that was given stays
  if given then return rank end
  if session == '' and program == '' then return rank end
  local label = program ~= '' and 'p' .. program or 's' .. session
  local early = rank - h.lead(tenant .. '\0' .. label, enqueued_ms(lane, id), rank)
  -- @guard program: the housekeeping looks for deadlines among ranks to come only
  if deadline and early <= now_ms() then return rank end
  return early
end

return h
