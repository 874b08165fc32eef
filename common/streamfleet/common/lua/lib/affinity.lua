-- @include affinity_records
-- @include affinity_index
-- @include affinity_upkeep
-- Affinity: a request goes to the worker that has its beginning in its prefix cache, its home. A home is a worker's number;
-- each start of a worker gets a new one, because its cache is empty. The keys:
--   homes: an index beside the ready sets, '<lane><rank><member of ready>', by home: its score is lane * 2^40 + number, number 0
--     for what any worker may take. A member without its entry in the ready set is left over, and dropped when it is met.
--   sessions: 's<hash>' of a session and 'p<hash>' of a beginning of prompts, '<last use, ms> <uses lately> <number>,…';
--     'f<hash>' of a program '<last use, ms> <first arrival, ms> '; 'n|<worker>' '<number> <start>'; 'w|<number>'
--     '<last pull, ms> <what it does> <worker>'; '#' the last number; '^<lane>' '<since, ms> <rank> <member>' of the
--     head of a lane that is passed over, with the lowest rank that others took since; '@<lane>' a place in its ready set.
--   loads: number to what it holds and what waits for it; AFFINITY.lost and more for a home whose requests are anybody's by now.
-- While nobody gives a session, and no two prompts share a long beginning, a pull reads none of these keys: SCHED has no field
-- `sessions`, or it is not AFFINITY.homing. The rules, with the figures behind them, are in docs/locality.md.
-- AFFINITY.all: the functions; AFFINITY.made: the same if this call may use them, nil until that is known.
-- @begin
AFFINITY.made = nil
-- @end

-- Returns a table of functions; false where one of these keys was overwritten by hand.
local function homes()
  if AFFINITY.made ~= nil then return AFFINITY.made end
  local worker = ARGV[2] or ''   -- where a worker calls, its number is needed anyway
  local field, words = 'n|' .. worker, nil
  -- A call reads the fields of a home and of the heads of lanes every 100 ms. Pulls remember what pulls have written, and see
  -- what other scripts have written up to 100 ms late.
  local caller = AFFINITY.lately(field, 100) and known.callers[field]
  if not caller then words = call_if_typed('HMGET', SESSIONS, field, lane_fields('^,')) end
  AFFINITY.made = (words or caller and call_if_typed('HLEN', SESSIONS)) and call_if_typed('ZCARD', HOMES) and true or false
  -- @guard affinity: keys of another type are left alone
  if AFFINITY.made == false then return false end
  if not AFFINITY.all then
    AFFINITY.all = {}
    AFFINITY.add_records(AFFINITY.all)
    AFFINITY.add_index(AFFINITY.all)
    AFFINITY.add_upkeep(AFFINITY.all)
  end
  if words then
    caller = {worker = worker, started = words[1]}
    if words[1] then known.callers[field] = caller end
    for lane = 1, LANE_COUNT do AFFINITY.all.know_mark(lane, words[1 + lane]) end
  end
  AFFINITY.all.begin_call(caller)
  AFFINITY.made = AFFINITY.all
  return AFFINITY.made
end

-- The same, if a session was given lately.
local function homing()
  if not sched then look_at_sched() end
  return some_sessions == AFFINITY.homing and (AFFINITY.made or homes())
end

-- An entry becomes ready.
local function find_home(lane, id, rank, fields, session, bytes)
  look_at_sched()
  local at_home = (session or some_sessions == AFFINITY.homing or bytes >= AFFINITY.beginning_bytes) and homes()
  if at_home then at_home.place(lane, id, rank, fields) end
end

-- An entry is ready no more, and no pull takes it.
local function leave_home(lane, id, rank)
  local at_home = rank and homing()
  if at_home then at_home.remove(lane, {{rank, encode_id(id)}}) end
end

-- The rank of an entry that becomes ready: its deadline, or what stands for one. Where the queue ranks by program, a turn
-- goes ahead by its program's age, unless its deadline was given as such.
function AFFINITY.rank(lane, id, deadline, fields)
  local rank = rank_of(lane, id, deadline)
  if cfg.rank_by_program ~= 'on' then return rank end
  local tenant, session, program, given = '', '', '', nil
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if name == 'tenant' then tenant = value elseif name == 'session' then session = value
    elseif name == 'program' then program = value elseif name == 'deadline' then given = milliseconds(value) end
  end
  -- @guard program: a deadline that was given stays
  if given then return rank end
  if session == '' and program == '' or not homes() then return rank end
  local label = program ~= '' and 'p' .. program or 's' .. session
  local early = rank - homes().lead(tenant .. '\0' .. label, enqueued_ms(lane, id), rank)
  -- @guard program: the housekeeping looks for deadlines among ranks to come only
  if deadline and early <= now_ms() then return rank end
  return early
end

-- A worker has ended requests.
function AFFINITY.ended(worker, number)
  local at_home = homing()
  local home = at_home and at_home.number(worker)
  -- @guard affinity: what has ended is no load
  if home then at_home.add_work(home, -number) end
  FILLING.ended(worker, number)
end

-- A worker that pulls is known as a home from now on.
function AFFINITY.meet(arg)
  local at_home = arg.start and homing()
  if at_home and not at_home.mine then at_home.arrive(arg.worker, arg.start) end
end
