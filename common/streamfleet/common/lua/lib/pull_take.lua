-- @include pull_stage
-- @include lane_shares
-- @include wake
-- Third part of a pull: claim the chosen entries for the worker, and end those that must not run.

-- Claims entries in their first attempt. `some`: their ids; may be changed here.
local function claim_first(lane, some, worker, how)
  local n = #some
  if n == 1 and not how then return call('XCLAIM', lane_key(lane), GROUP, worker, 0, some[1], 'RETRYCOUNT', 1, 'FORCE') end
  some[n + 1], some[n + 2], some[n + 3], some[n + 4] = 'RETRYCOUNT', 1, 'FORCE', how
  return call('XCLAIM', lane_key(lane), GROUP, worker, 0, unpack(some))
end

-- Claims entries. Returns {stream id = fields} of those that still have fields; and by place the records of attempts, or
-- nil if there are none. What was staged in this call is not read again.
local function claim(lane, ids, worker)
  local fields_of, fresh, here, read, records = {}, {nil}, arrived[lane], nil, nil
  if some_attempts() then
    local names = {}
    for i, id in ipairs(ids) do names[i] = entry_field(lane, id) end
    records = call('HMGET', ATTEMPTS, unpack(names))
  end
  for i, id in ipairs(ids) do
    local attempt = records and attempts_in(records[i]) + 1 or 1
    if attempt > 1 then
      local entry = call('XCLAIM', lane_key(lane), GROUP, worker, 0, id, 'RETRYCOUNT', attempt, 'FORCE')[1]
      if entry then fields_of[id] = entry[2] end
    elseif here and here[id] then
      read = read or {nil}
      read[#read + 1], fields_of[id] = id, here[id][3]
    else
      fresh[#fresh + 1] = id
    end
  end
  if read then claim_first(lane, read, worker, 'JUSTID') end
  for _, entry in ipairs(fresh[1] and claim_first(lane, fresh, worker) or fresh) do
    if entry then fields_of[entry[1]] = entry[2] end   -- false: XDELed by hand (Redis 6.2)
  end
  return fields_of, records
end

-- True if the entry may run; otherwise it has been ended. `asked`: true if it may have a result already.
local function runnable(claimed, size, deadline, asked)
  local lane, id, _, request_id, fields = unpack(claimed)
  if asked and answered(request_id) then
    discard_duplicate(lane, id, read_entry(lane, id, fields))
    return false
  end
  if not unfit(size, deadline) then return true end
  end_unfit(lane, id, fields)
  return false
end

-- Takes the first entries of a lane out of its sets; returns their stream ids.
local function pop(lane, wanted, worker)
  local ids = TURNS.pop(lane, wanted, worker)
  if ids then return ids end
  local some = call('ZPOPMIN', ready_key(lane), wanted)
  ids = {nil}
  for i = 1, #some, 2 do ids[#ids + 1] = decode_id(some[i]) end   -- an invalid id is dropped here
  return ids
end

local function take_from(lane, picks, arg, claims)
  local ids, bytes, dropped = pop(lane, picks, arg.worker), 0, 0
  if #ids == 0 then return 0, 0, 0 end
  local here = arrived[lane]
  local fields_of, records = claim(lane, ids, arg.worker)
  local rows, sizes, deadlines, results, seen, names, run_fields = {nil}, {nil}, {nil}, {nil}, ids[2] and {}, {nil}, {nil}
  local twice = false   -- two entries of one id: if the first ends here, the second has a result
  for i, id in ipairs(ids) do
    local fields = fields_of[id]
    if fields then
      local size, deadline, given, tenant
      if here and here[id] then
        size, deadline, given, tenant = unpack(here[id], 4, 7)
      else
        size, deadline, given, tenant = skim_entry(lane, id, fields)
      end
      if tenant then names[i] = tenant end
      local request_id = request_id_of(given, lane, id)
      local kept = kept_enqueued_ms(lane, id)
      local record = records and records[i]
      rows[i] = {lane, id, record and attempts_in(record) + 1 or 1, request_id, fields,
        record and #workers_lost(record) or 0, kept and string.format('%.0f', kept) or '',
        interruptions(lane, id), '', TURNS.passed(lane, i)}
      sizes[i], deadlines[i] = size, deadline
      results[#results + 1] = result_key(request_id)
      if seen then twice, seen[request_id] = twice or seen[request_id], true end
    end
  end
  -- One check for all of them first, because there is rarely a result.
  local asked = twice or #results > 0 and call('EXISTS', unpack(results)) > 0
  for i, id in ipairs(ids) do
    local row = rows[i]
    local runs = row and runnable(row, sizes[i], deadlines[i], asked)
    if runs and arg.needs and deadlines[i] then
      row[9] = TURNS.judge(row, deadlines[i], names[i], arg)
      runs = row[9]
    end
    if not row then
      remove_entry(lane, id)
      count('vanished')
    end
    if runs then
      claims[#claims + 1] = row
      bytes = bytes + sizes[i]
      run_fields[i] = row[5]
    else
      dropped = dropped + 1
    end
  end
  -- @guard hooks: policies are told of what is taken
  TURNS.taken(lane, ids, run_fields)
  return bytes, dropped, #ids
end

-- Number of requests to take at once: as many as there is room for, but not many more than the emptiest would hold that
-- waits. At least one: that worker may be dead.
local function wanted_of(arg)
  if arg.n == 1 then return 1 end
  local first = tonumber(call('ZRANGE', WAITING, 0, 0, 'WITHSCORES')[2])
  return first and first < NO_SLOT and math.max(1, math.min(arg.n, first + STEP - arg.held)) or arg.n
end

-- `cut`: the lane that was not staged to its end. Only entries that wait in it and in the lanes before it are taken,
-- except for the shares of the others; the worker pulls again at once. Rounds grow while entries are small, so that one
-- reply never carries much more than taken_bytes; `waiting` goes down with the taken entries. A bounded number of drops
-- per call keeps a lane full of expired ones from stalling the server.
local function take(arg, waiting, cut, more)
  local claims, dropped, bytes, round = {nil}, 0, 0, math.min(4, MOST_UNSEEN)
  if arg.n == 0 or sum(waiting) == 0 then return claims, dropped end
  local credit = load_credit(waiting)
  while cut and (lanes[PAUSED + cut] or not more[cut]) do   -- a paused lane must not block the others
    cut = cut < LANE_COUNT and cut + 1 or nil
  end
  local wanted, urgent = arg.n, 0
  -- @guard filling: small steps while others have more room
  wanted = wanted_of(arg)
  if wanted < arg.n then wanted = math.max(wanted, math.min(arg.n, TURNS.own())) end
  for lane = 1, cut or 0 do urgent = urgent + waiting[lane] end
  -- @guard take: nothing in place of what is not in order yet
  if cut then wanted = math.min(wanted, urgent) end
  while #claims < wanted and dropped < arg.n + 64 and bytes < cfg.taken_bytes do
    local picks, number = choose(math.min(wanted - #claims, round), waiting, credit, cfg.shares, arg, #claims)
    if number == 0 then break end   -- nothing waits, or only in lanes that the worker has no room for
    local seen = #claims + dropped
    for lane = 1, LANE_COUNT do
      if picks[lane] > 0 then
        local took, ended, popped = take_from(lane, picks[lane], arg, claims)
        bytes, dropped = bytes + took, dropped + ended
        if popped < picks[lane] then waiting[lane] = 0 end   -- what is left may not run yet: look no further
      end
    end
    local average = bytes / math.max(1, #claims + dropped - seen)
    local fitting = math.floor((cfg.taken_bytes - bytes) / math.max(1, average))
    round = math.max(1, math.min(round * 4, 128, MOST_UNSEEN, fitting))
  end
  -- @guard choose: credit is kept
  if #claims + dropped > 0 then save_credit(credit) end
  return claims, dropped
end
