-- @include hooks
-- Time until a waiting request is taken, by the pace of the queue. The housekeeping measures that once a second, and
-- worker/services/pace.py tells what the key `pace` holds; everybody who tells or judges a time reads it.
local PACE, STALE_MS, FOR_EVER_MS = KEYS[SHARED + 1], 10000, 86400000
local MOST_HOMES, HOUR_MS, MOST_CREDIT = 64, 3600000, 4096   -- the last two as in lua/order/tenant_turns.lua

-- Returns nil where there is none, or somebody has written one by hand that lacks a part.
local function read_pace()
  local ok, pace = pcall(cjson.decode, call_if_typed('GET', PACE) or '')
  if not ok or type(pace) ~= 'table' or type(pace.lanes) ~= 'table' then return nil end
  -- @guard pace: one that lacks a number is none
  for _, name in ipairs({'at', 'took', 'left', 'span', 'run'}) do if type(pace[name]) ~= 'number' then return nil end end
  for lane = 1, LANE_COUNT do
    local of_lane = pace.lanes[lane]
    -- @guard pace: one that lacks a lane is none
    if not (of_lane and of_lane.came and of_lane.gone and of_lane.who and of_lane.spans) then return nil end
  end
  return pace
end

-- Numbers of waiting requests in lanes that are not paused, 0 for the others; which are paused; and the numbers of all lanes.
local function unpaused()
  local found, waiting, paused, all, o = call('HMGET', LANES, lane_fields('paused:,')), {}, {}, {}, ordering()
  for lane = 1, LANE_COUNT do
    paused[lane], all[lane] = found[lane] ~= false, call('ZCARD', ready_key(lane)) + (o and o.length(lane) or 0)
    waiting[lane] = paused[lane] and 0 or all[lane]
  end
  return waiting, paused, all
end

-- Number of a tenant's requests, '' for none, that go before a rank in its lane; and of all of them. `key`, `member`: where
-- the request of this rank waits; nil for one that would come.
local function number_before(lane, name, rank, key, member)
  local o = ordering()
  rank = string.format(key and '(%.0f' or '%.0f', rank)
  local function before_in(set) return set == key and call('ZRANK', set, member) or call('ZCOUNT', set, '-inf', rank) end
  if o then o.write() end
  if name ~= '' then
    if not o then return 0, 0 end
    local free, homed = o.key(lane, ':t:', name), o.key(lane, ':th:', name)
    return before_in(free) + before_in(homed), call('ZCARD', free) + call('ZCARD', homed)
  end
  local before, all, homed = before_in(ready_key(lane)), call('ZCARD', ready_key(lane)), 0
  if not o or o.counts[lane].h == 0 then return before, all end
  local firsts = o.key(lane, ':firsts')
  local some = call('ZRANGEBYSCORE', firsts, '-inf', rank, 'LIMIT', 0, MOST_HOMES)
  for _, home in ipairs(some) do homed = homed + before_in(o.key(lane, ':h:', home)) end
  -- @guard pace: of many homes some stand for all
  if #some == MOST_HOMES then homed = homed * call('ZCOUNT', firsts, '-inf', rank) / MOST_HOMES end
  return before + homed, all + o.counts[lane].h
end

-- ms until `before` requests and those that come meanwhile are taken. `speed`: those taken in a ms. `coming`: a function of a
-- time, that returns the number of those that come until then and go first, and how many more would in another ms.
local function until_taken(before, speed, coming)
  if speed <= 0 then return FOR_EVER_MS end
  local ms = before / speed
  for _ = 1, 12 do
    local more, slope = coming(ms)
    local step = speed - slope > speed / 50 and (before + more - speed * ms) / (speed - slope) or ms + 1000
    ms = ms + step
    if ms > FOR_EVER_MS or math.abs(step) < ms / 100 then break end
  end
  return math.min(FOR_EVER_MS, ms)
end

-- Returns a function of a lane and the rank of a request: number of those of its lane that go first; ms until it is taken,
-- and of its run, nil if nobody can tell. Before it go those of its tenant with an earlier deadline, those of others whose
-- turns come first, all of more urgent lanes, and those that will still come before these; less urgent lanes take the shares
-- that they are guaranteed; and no lane gets less than its own share.
-- `raw`: its tenant, nil or '' where none is known; `more`: number of those that arrive with it and go first, and `more_own`
-- of its tenant's among them; `key`, `member`: as in number_before.
local function expectations()
  local pace, waiting, paused, lengths = read_pace(), unpaused()
  -- @guard pace: without workers there is none
  if pace and math.abs(now_ms() - pace.at) > STALE_MS then pace = nil end

  -- Number of requests of a lane that go before the next of a tenant. Then, of other tenants whose turns would come first, by
  -- the hash of their names: how many more requests they could send before it; nil for none, and for who is not there. Then
  -- how many runs have to end first.
  local function in_turns(lane, rank, raw, more, more_own, key, member)
    local turns = pace and pace.lanes[lane]
    local t = sharing()
    local name = t and t.name(raw) or ''
    local ahead, all = number_before(lane, name, rank, key, member)
    -- Of others as large a part goes first, until their turns are known: 0 of it if the tenant has nothing there.
    local others = math.max(0, lengths[lane] - all) * (all > 0 and ahead / all or 0)
    if not (t and turns and turns.rows) then return math.floor(ahead + others + more + 0.5), nil, 0 end
    ahead = ahead + more_own
    local rows, room = turns.rows, {}
    local record, hash, usual = t.record(name), t.hash(name), nil
    local sum, reached = ahead, t.number(t.level_field(lane))
    for _, row in ipairs(rows) do if row[1] == hash then usual = row[3] end end
    usual = usual or (name == '' and t.usual() or (t.cost(record))) / record.weight
    local tokens, waits = t.turn(lane, name)
    if not waits then
      local known = name == '' or record.requests > 0 or record.charged > 0
      local start = math.max(rows[1] and rows[1][2] or 0, reached)
      -- @guard turns: names without history start one behind the other
      if not known then start = math.max(start, t.number('new|' .. lane)) end
      local credit = name ~= '' and known and math.abs(now_ms() - record.credited) >= HOUR_MS
      -- @guard turns: who comes back starts below the others, once an hour
      if credit then start = start - math.min(usual, MOST_CREDIT / record.weight) end
      tokens = math.max(tokens or 0, start)
    end
    local last = tokens + ahead * usual
    for _, row in ipairs(rows) do
      local at = math.max(row[2], math.min(reached, last))   -- what it was charged since
      local left, fits = math.max(0, row[4] - (at - row[2]) / row[3]), math.max(0, math.ceil((last - at) / row[3]))
      -- @guard turns: those of others come between
      if row[1] ~= hash then sum = sum + turns.each * math.min(left, fits) end
      room[row[1]] = math.max(0, fits - left)
    end
    room[hash] = false
    -- @guard turns: of those that may run at once, one has to end first
    local blocked = record.most < math.huge and math.max(0, ahead + 1 + record.running - record.most) / record.most or 0
    return math.floor(math.min(sum, lengths[lane] + more) + 0.5), room, blocked
  end

  -- As `coming`, of what comes into the lane itself. `left`: ms until the rank of the request.
  local function coming_before(lane, room, left)
    local senders = pace.lanes[lane]
    if pace.span < 1000 then return function() return 0, 0 end end
    local own, others, always, spans = 0, {}, senders.gone / pace.span, 0
    for who, sent in pairs(senders.who) do
      local rate, free = sent / pace.span, room and room[who]
      if not room or free == false then
        own = own + rate
      elseif free == nil then
        always = always + rate
      elseif free > 0 then
        others[#others + 1] = {rate, free}
      end
    end
    for _, sent in pairs(senders.spans) do spans = spans + sent end
    return function(ms)
      local number, slope = always * ms, always
      for _, other in ipairs(others) do
        number, slope = number + math.min(other[2], other[1] * ms), slope + (other[1] * ms < other[2] and other[1] or 0)
      end
      for class, sent in pairs(senders.spans) do
        local rate, earlier = own * sent / spans, left - math.exp((class + 0.5) / 8)
        -- @guard pace: who comes with an earlier deadline goes first
        number, slope = number + rate * math.max(0, math.min(ms, earlier)), slope + (ms < earlier and rate or 0)
      end
      return number, slope
    end
  end

  return function(lane, rank, raw, more, more_own, key, member)
    local place, room, blocked = in_turns(lane, rank, raw, more, more_own, key, member)
    -- @guard pace: nobody knows how long a lane is paused
    if not pace or pace.took < 1000 or paused[lane] then return place end
    local rate, coming = math.max(pace.left, 1) / pace.took, coming_before(lane, room, rank - now_ms())
    local before, urgent, others = place + 1, 0, 0
    for other = 1, LANE_COUNT do
      if other < lane then
        before, urgent = before + waiting[other], urgent + (paused[other] and 0 or pace.lanes[other].came / math.max(1, pace.span))
      elseif other > lane and waiting[other] > 0 then
        others = others + cfg.shares[other]
      end
    end
    local run, share = pace.run, rate * cfg.shares[lane] / 1000
    local ms = until_taken(before, rate * (1000 - others) / 1000 - urgent, coming)
    if share > 0 then ms = math.min(ms, until_taken(place + 1, share, coming)) end
    return place, math.min(FOR_EVER_MS, math.max(ms, blocked * run)), run
  end
end
