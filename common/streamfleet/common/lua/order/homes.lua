-- @include home_upkeep
-- Affinity: a request goes to the worker that has its beginning in its prefix cache, its home. A home is a worker's number;
-- each start of a worker gets a new one, because its cache is empty. The keys:
--   sessions: 's<hash>' of a session and 'p<hash>' of a beginning of prompts, '<last use, ms> <uses lately> <number>,…';
--     'f<hash>' of a program '<last use, ms> <first arrival, ms> '; 'n|<worker>' '<number> <start>'; 'w|<number>'
--     '<last pull, ms> <what it does> <worker>'; '#' the last number.
--   loads: number to what it holds and what waits for it; LOST and more for a home whose requests are anybody's by now.
-- While nobody gives a session, and no two prompts share a long beginning, a pull reads none of these keys: LANES has no field
-- `sessions`, or it is not HOMING. The rules are in docs/order.md.
-- @guard affinity: a key of another type is left alone
if not call_if_typed('HLEN', SESSIONS) then return false end

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
  local early = rank - h.lead(tenant, session, program, enqueued_ms(lane, id), rank)
  -- @guard program: the housekeeping looks for deadlines among ranks to come only
  if deadline and early <= now_ms() then return rank end
  return early
end

return h
