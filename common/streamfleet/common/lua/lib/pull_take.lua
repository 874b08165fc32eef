-- @include finish
-- @include tries
-- @include pull_choose
-- Third part of a pull: claim the chosen entries for the worker; what must not run is dropped here.

-- {stream id = {attempt, lost = how many of the former ones were lost with their workers, fields or nil when the entry
--   is gone}}
local function claim(lane, ids, worker)
  local tries, claimed, fresh = {}, {}, {'XCLAIM', lane_key(lane), GROUP, worker, 0}
  if call('HLEN', TRIES) > 0 then
    local names = {}
    for i, id in ipairs(ids) do names[i] = tries_field(lane, id) end
    tries = call('HMGET', TRIES, unpack(names))
  end
  for i, id in ipairs(ids) do
    local attempt = attempts_in(tries[i] or '') + 1
    claimed[id] = {attempt = attempt, lost = tries[i] and #workers_lost(tries[i]) or 0}
    if attempt == 1 then
      fresh[#fresh + 1] = id
    else
      local entry = call('XCLAIM', lane_key(lane), GROUP, worker, 0, id, 'RETRYCOUNT', attempt, 'FORCE')[1]
      if entry then claimed[id].fields = entry[2] end
    end
  end
  if #fresh > 5 then
    for _, word in ipairs({'RETRYCOUNT', 1, 'FORCE'}) do fresh[#fresh + 1] = word end
    for _, entry in ipairs(call(unpack(fresh))) do
      if entry then claimed[entry[1]].fields = entry[2] end   -- false: XDELed by hand (Redis 6.2)
    end
  end
  return claimed
end

-- Whether the entry may run; if not, it has been ended. `asked`: whether it may have a result already.
local function runnable(lane, id, found, attempt, now, asked)
  local fields = found.fields
  if asked and answered(found.id) then
    settle(lane, id, read_entry(lane, id, fields))
  elseif found.deadline and found.deadline <= now then
    bury(lane, id, fields, read_entry(lane, id, fields), {status = 'expired', attempts = attempt - 1,
      error = deadline_error('while the request was queued')})
  elseif found.bytes > cfg.max_entry_bytes then
    local message = string.format('the request is %d bytes; at most %d are allowed', found.bytes, cfg.max_entry_bytes)
    bury(lane, id, fields, read_entry(lane, id, fields), {status = 'failed', attempts = attempt - 1,
      error = openai_error(message, 'invalid_request_error', 'body', 'request_too_large')})
  else
    return true
  end
  return false
end

local function take_from(lane, picks, arg, now, claims)
  local ids, bytes, dropped = {}, 0, 0
  local popped = call('ZPOPMIN', ready_key(lane), picks)
  for i = 1, #popped, 2 do ids[#ids + 1] = decode_id(popped[i]) end   -- what is no id is dropped here
  if #ids == 0 then return 0, 0 end
  local claimed, results, seen = claim(lane, ids, arg.worker), {}, {}
  local twice = false   -- two entries of one id: when the first ends here, the second has a result
  for _, id in ipairs(ids) do
    local found, _ = claimed[id]
    if found.fields then
      found.bytes, _, found.id, found.deadline = skim_entry(lane, id, found.fields)
      results[#results + 1] = result_key(found.id)
      twice, seen[found.id] = twice or seen[found.id], true
    end
  end
  -- One question for all of them first: hardly ever has one of them a result.
  local there = #results > 0 and redis.pcall('EXISTS', unpack(results))
  local asked = twice or there and there ~= 0   -- not a number where this user may not ask so
  for _, id in ipairs(ids) do
    local found = claimed[id]
    if not found.fields then
      remove_entry(lane, id)
      count('vanished')
      dropped = dropped + 1
    else
      if runnable(lane, id, found, found.attempt, now, asked) then
        claims[#claims + 1] = {lane, id, found.attempt, found.id, found.fields, found.lost}
        bytes = bytes + found.bytes
      else
        dropped = dropped + 1
      end
    end
  end
  return bytes, dropped
end

-- `cut`: the lane that was not staged to its end. No more is taken than waits in it and in the lanes before it: that is
-- where all of it comes from, but for the others' shares. The worker asks again at once.
-- Rounds grow while entries are small, so that one reply never carries much more than take_bytes; `waiting` goes down
-- with what was taken. A bounded number of drops per call keeps a lane full of expired ones from stalling the server.
local function take(arg, waiting, cut, now)
  local claims, dropped, bytes, round, credit = {}, 0, 0, 4, nil
  local wanted, urgent = arg.n, 0
  for lane = 1, cut or 0 do urgent = urgent + waiting[lane] end
  if cut then wanted = math.min(wanted, urgent) end
  while #claims < wanted and dropped < arg.n + 64 and bytes < arg.take_bytes do
    local total = waiting[1] + waiting[2] + waiting[3] + waiting[4]
    if total == 0 then break end
    credit = credit or load_credit()
    local picks = choose(math.min(wanted - #claims, round), waiting, credit, arg.shares)
    local seen = #claims + dropped
    for lane = 1, LANE_COUNT do
      if picks[lane] > 0 then
        local took, ended = take_from(lane, picks[lane], arg, now, claims)
        bytes, dropped = bytes + took, dropped + ended
      end
    end
    local average = bytes / math.max(1, #claims + dropped - seen)
    round = math.max(1, math.min(round * 4, 128, math.floor((arg.take_bytes - bytes) / math.max(1, average))))
  end
  if credit then save_credit(credit) end
  return claims, dropped
end
