-- @include home_records
-- Affinity: the index of what waits by home, and what a worker may take of it: what waits for itself and for nobody, by
-- deadline; if there is neither, the head of a lane that has waited long for another.
-- `caller`: the worker that calls; `found`: what SESSIONS tells of it and of the heads of lanes.
local function add_index(h, caller, found)
  local FREE, STEP, ROUNDS, NO_MARK = 0, 1099511627776, 4, {words = false}
  local BUSY, WAITS, WOKEN, PASSED_ON = 0, 1, 2, 3   -- what a worker does that is a home
  local added, woken = {}, {}  -- scores and members to write; homes that got something
  local seen, looked = {}, {}  -- by lane what `see` found, or false; true if its head was looked at
  local marks, over = {}, {}   -- by lane its mark, false for none; the lowest row that was taken since the last look at its head
  local foreign                -- ids that `pop` took and that did not wait for this worker, or nil
  local started = found[1]     -- number and start of the worker that calls, as text; false for one that is no home
  local took = 0               -- number of requests taken that waited for this worker

  local function score(lane, number) return lane * STEP + number end
  local function member_of(lane, rank, member) return lane .. string.format('%016.0f', rank) .. member end

  local function shares(lane)
    local shared = some_tenants and sharing()
    return shared and shared.shares(lane)
  end

  -- True if all tenants that wait in the lane run as many as they may.
  local function at_limits(lane)
    local shared = shares(lane) and sharing()
    return shared and not shared.least(lane) and shared.shares(lane, true)
  end

  function h.write_index()
    if not added[1] then return end
    local words = added
    added = {}
    for i = 1, #words, 400 do call('ZADD', HOMES, unpack(words, i, math.min(i + 399, #words))) end
  end

  function h.of(lane, number, most)
    h.write_index()
    local at = score(lane, number)
    return call('ZRANGEBYSCORE', HOMES, at, at, 'LIMIT', 0, most)
  end

  function h.count(lane, number)
    h.write_index()
    return call('ZCOUNT', HOMES, score(lane, number), score(lane, number))
  end

  -- A session is there.
  function h.begin()
    if some_sessions == HOMING then return end
    some_sessions = HOMING
    call('HSET', LANES, 'sessions', HOMING)
  end

  -- A worker's number; nil for one that is no home.
  function h.number(name)
    local known = name == caller and started
    if name ~= caller then known = call('HGET', SESSIONS, 'n|' .. name) end
    return tonumber(string.match(known or '', '^%d+'))
  end

  -- An entry becomes ready.
  function h.place(lane, id, rank, fields)
    local gave_way_at = some_interrupted and string.match(interruptions(lane, id), ' %d+ (%S+)$')
    local number = gave_way_at and h.number(gave_way_at)
    if not (number and h.work_of(number)) then number = h.home_for(lane, fields) end
    if number then
      h.begin()
      h.add_work(number, 1)
      woken[number] = true
    end
    -- Where tenants share, who waits for nobody is in their index.
    if some_sessions ~= HOMING or not number and shares(lane) then return end
    added[#added + 1], added[#added + 2] = score(lane, number or FREE), member_of(lane, rank, encode_id(id))
  end

  -- Rows of rank and member of the ready set leave the index.
  function h.remove(lane, rows)
    h.write_index()
    local members = {}
    for i, row in ipairs(rows) do members[i] = member_of(lane, row[1], row[2]) end
    for i = 1, #members, 400 do
      -- @guard affinity: what is ready no more has no home
      call('ZREM', HOMES, unpack(members, i, math.min(i + 399, #members)))
    end
  end

  -- Number of an entry's home; FREE for none, nil if it is not in the index.
  local function home_of(lane, member, rank)
    local at = rank and call('ZSCORE', HOMES, member_of(lane, rank, member))
    return at and at % STEP or nil
  end

  -- The first of a lane: its member and rank; its id; and its home's number. With `member`: nil if it is another.
  local function head(lane, member)
    local row = call('ZRANGE', ready_key(lane), 0, 0, 'WITHSCORES')
    if member and row[1] ~= member then return nil end
    local id = row[1] and decode_id(row[1])
    return row, id, id and home_of(lane, row[1], row[2])
  end

  local function read_mark(words)
    local since, lowest, member = string.match(words, '^(%d+) (%d+) (.*)$')
    return member and {member = member, id = decode_id(member), since = tonumber(since), lowest = tonumber(lowest), words = words}
      or false
  end

  for lane = 1, LANE_COUNT do
    seen[lane] = false
    marks[lane] = found[1 + lane] and read_mark(found[1 + lane])
  end

  local function write_mark(lane, since, lowest, member)
    local text = string.format('%.0f %.0f %s', since, lowest, member)
    if text == (marks[lane] or NO_MARK).words then return end
    marks[lane] = read_mark(text)
    call('HSET', SESSIONS, '^' .. lane, text)
  end

  -- True for an entry that this worker leaves to another, which has not had its time yet.
  function h.elsewhere(lane, id)
    if h.until_long_ago(enqueued_ms(lane, id)) == 0 then return false end
    local member = encode_id(id)
    local number = home_of(lane, member, call('ZSCORE', ready_key(lane), member))
    return number and number ~= FREE and number ~= h.mine and h.work_of(number) and true or false
  end

  -- The worker that pulls. A new start of it gets a new number.
  function h.arrive(start)
    local number, since = string.match(started or '', '^(%d+) (.*)$')
    -- @guard affinity: a worker that comes back is new
    if number and since == start then
      h.mine = tonumber(number)
    else
      if number and h.work_of(tonumber(number)) then h.lose(tonumber(number)) end
      h.mine = call('HINCRBY', SESSIONS, '#', 1)
      started = string.format('%.0f %s', h.mine, start)
      call('HSET', SESSIONS, 'n|' .. caller, started)
    end
  end

  local function note(number, last, waits, name)
    call('HSET', SESSIONS, 'w|' .. number, string.format('%.0f %d %s', last, waits, name))
  end

  -- An entry that waits in no index may go to anybody: it was ready before the first session, or the index was lost.
  local function adopt(lane, missing)
    local place = tonumber(call('HGET', SESSIONS, '@' .. lane) or nil) or 0
    for _, from in ipairs(place > 0 and {0, place} or {0}) do
      local rows, members = call('ZRANGE', ready_key(lane), from, from + 63, 'WITHSCORES'), {}
      for i = 1, #rows, 2 do members[#members + 1] = member_of(lane, rows[i + 1], rows[i]) end
      for i, listed in ipairs(#members > 0 and call('ZMSCORE', HOMES, unpack(members)) or {}) do
        if not listed then added[#added + 1], added[#added + 2] = score(lane, FREE), members[i] end
      end
      place = #members == 64 and from + 64 or 0
    end
    if place > 0 then call('HSET', SESSIONS, '@' .. lane, place) else call('HDEL', SESSIONS, '@' .. lane) end
  end

  -- The first of a lane if it waits for another worker, and after how many ms this one may take it: it has waited so long
  -- beside an idle worker, or others behind it were taken for so long.
  local function head_of_others(lane, idle)
    local mark = seen[lane].mark
    if not idle and not (mark and h.until_long_ago(mark.since) == 0) then return nil end
    local row, id, home = head(lane, not idle and mark.member)
    if not id or home == FREE or home and home == h.mine then return nil end
    seen[lane].head = home and {row, id, home}
    home = home and idle and h.work_of(home)
    -- @guard affinity: an idle worker takes what has waited long for another
    if idle then return row, home and h.until_long_ago(enqueued_ms(lane, id)) or 0 end
    -- @guard affinity: what was passed over for long goes to anybody
    return row, 0
  end

  -- Sets `waiting` to what this worker may take now, as far as one more of each lane than it has room for. Returns after how
  -- many ms it may take more, or nil.
  function h.see(waiting, arg)
    local total, soonest, most = 0, nil, arg.n + 1
    for lane = 1, LANE_COUNT do
      local all = waiting[lane]
      seen[lane] = false
      if all > 0 then
        local own, due, unlisted = h.mine and h.of(lane, h.mine, most) or {}, not looked[lane], 0
        local free = h.of(lane, FREE, most)
        local others = #free
        local here = #own + others
        looked[lane] = true
        -- One look in a call is enough: an idle worker takes the head of a lane in any case.
        if here < all and (due or shares(lane)) then
          unlisted = math.max(0, all - call('ZCOUNT', HOMES, score(lane, FREE), '(' .. score(lane + 1, FREE)))
          if unlisted > 0 and not shares(lane) then
            -- @guard affinity: what stands in no index is taken too
            adopt(lane)
            free, unlisted = h.of(lane, FREE, most), 0
            others = #free
          end
          here = #own + others + unlisted
        end
        local now = {all = all, own = #own, free = others + unlisted, more = #own == most, due = due, open = arg.rooms[lane] > 0,
          mine = own, i = 1, others = free, j = 1, mark = marks[lane], head = false, stolen = false, barred = false}
        if here < all then waiting[lane] = here end
        now.barred = at_limits(lane)
        -- @guard affinity: what no tenant may run is not there to be taken
        if now.barred then waiting[lane] = 0 end
        if now.open then total = total + waiting[lane] end
        seen[lane] = now
      end
    end
    for lane = 1, LANE_COUNT do
      local now = seen[lane]
      if now and now.open and not now.barred and waiting[lane] < now.all then
        local row, left = head_of_others(lane, total == 0)
        if row and left > 0 then
          soonest = math.min(soonest or left, left)
        elseif row then
          waiting[lane], total, now.stolen, soonest = waiting[lane] + 1, total + 1, row, 0
        end
      end
    end
    return soonest
  end

  -- Number of requests that wait for this worker alone.
  function h.own()
    local number = 0
    for lane = 1, LANE_COUNT do number = number + (seen[lane] and seen[lane].own or 0) end
    return number
  end

  -- Takes what waits for this worker and for nobody, the earlier deadline first.
  local function take(lane, wanted, ids)
    local now, first = seen[lane], nil
    local mark, own, free, i, j = now.mark, now.mine, now.others, now.i, now.j
    for _ = 1, ROUNDS do
      -- Rows of the index; the same as in the ready set; by place, true for nobody's.
      local rows, members, is_free = {nil}, {nil}, nil
      for n = 1, wanted - #ids do
        local row, other = own[i], free[j]
        if not (row or other) then break end
        -- @guard affinity: its own and nobody's go by deadline
        if row and not (other and other < row) then
          i = i + 1
        else
          row, j, is_free = other, j + 1, is_free or {}
          is_free[n] = true
        end
        rows[n], members[n] = row, string.sub(row, 18)
      end
      if not rows[1] then break end
      local there = rows[2] and call('ZMSCORE', ready_key(lane), unpack(members))
      local gone = call('ZREM', ready_key(lane), unpack(members))
      for n = 1, #rows do
        -- @guard affinity: what was left over is not taken
        local id = (there and there[n] or not there and gone == 1) and decode_id(members[n])
        if id then
          ids[#ids + 1] = id
          if not first and not (mark and id == mark.id) then first = rows[n] end
          if is_free and is_free[n] then foreign = foreign or {}; foreign[id] = true else took = took + 1 end
        end
      end
      call('ZREM', HOMES, unpack(rows))
      if #ids >= wanted then break end
    end
    now.i, now.j = i, j
    if first and not (over[lane] and over[lane] <= first) then over[lane] = first end
  end

  -- Tenants share the lane: first what waits for this worker, of tenants that are little ahead, then what waits for nobody.
  local function take_in_turn(lane, wanted, worker, ids)
    local shared = sharing()
    for _, row in ipairs(seen[lane].own > 0 and h.of(lane, h.mine, wanted) or {}) do
      local member = string.sub(row, 18)
      local id, rank = decode_id(member), call('ZSCORE', ready_key(lane), member)
      local taken = id and rank and shared.take_one(lane, id, member, rank)
      if taken then ids[#ids + 1], took = id, took + 1 end
      if taken or not rank then call('ZREM', HOMES, row) end
    end
    foreign = {}
    for _, id in ipairs(#ids < wanted and shared.pop(lane, wanted - #ids, worker) or {}) do
      ids[#ids + 1], foreign[id] = id, true
    end
  end

  -- Takes up to `wanted` entries out of the ready set, as `pop` does, and returns their stream ids.
  function h.pop(lane, wanted, worker)
    local ids, now, before = {nil}, seen[lane], took
    local row = now.stolen
    foreign = nil
    local in_turn = shares(lane)
    if row or in_turn then now.stolen, now.head = false, false end
    if in_turn then
      take_in_turn(lane, wanted, worker, ids)
    else
      if row then
        call('ZREM', HOMES, member_of(lane, row[2], row[1]))
        if call('ZREM', ready_key(lane), row[1]) == 1 then
          ids[1] = decode_id(row[1])
          if ids[1] then foreign = {[ids[1]] = true} end
        end
      end
      take(lane, wanted, ids)
    end
    local own = took - before
    now.all, now.own, now.free = now.all - #ids, now.own - own, math.max(0, now.free - (#ids - own))
    return ids
  end

  -- Entries that were taken: stream ids, and by place the fields of those that run. What was another's, or nobody's, is this
  -- worker's now.
  function h.claimed(lane, ids, runs)
    if not foreign then return end
    local ranks, gone = shares(lane) and sharing().ranks, nil
    for i = 1, #ids do
      local id = ids[i]
      if foreign[id] then
        if ranks then
          gone = gone or {}
          gone[#gone + 1] = {ranks[id], encode_id(id)}
        end
        -- @guard affinity: who takes it is its home
        if h.mine and runs[i] then h.moved(runs[i], h.mine) end
      end
    end
    -- @guard affinity: what is taken in turn leaves the index
    if gone then h.remove(lane, gone) end
  end

  -- Stream id of the first of a lane that is passed over; false for none.
  function h.passed_over(lane)
    local mark = seen[lane].mark
    return mark and mark.id
  end

  -- That entry was just taken. Returns the time for which it was passed over, ms, as text.
  function h.passed(lane)
    local mark = seen[lane].mark
    write_mark(lane, mark.since, mark.lowest, '-')
    return string.format('%.0f', math.max(0, now_ms() - mark.since))
  end

  -- The head of a lane that is left to another is passed over from now on; or since the one before it was, if it waited
  -- then already, and others took only what stands behind it. So a home that takes little is behind with all that waits.
  local function mark_passed(lane)
    local lowest_row = over[lane]
    local taken = shares(lane) and 0 or lowest_row and tonumber(string.sub(lowest_row, 2, 17)) or NO_DEADLINE
    over[lane] = false
    local row, id, home = unpack(seen[lane].head or {head(lane)})
    if home and home == h.mine then return end   -- it may be as far behind with this one
    local mark = marks[lane]
    if not home or home == FREE then
      marks[lane] = false
      return mark and call('HDEL', SESSIONS, '^' .. lane)
    end
    local since, lowest = mark and mark.since, math.min(mark and mark.lowest or NO_DEADLINE, taken)
    -- @guard affinity: who is behind with the first is behind with the next
    local behind = mark and enqueued_ms(lane, id) <= since and lowest > tonumber(row[2])
    if not (mark and mark.member == row[1]) and not behind then since, lowest = now_ms(), taken end
    write_mark(lane, since, lowest, row[1])
  end

  -- At the end of a pull: sets `waiting` to what makes it worth to wake somebody, or to pull again. Returns how many are
  -- ready in all, but for what no tenant may run; and after how many ms more may be taken, or nil.
  function h.left(waiting, arg, got)
    local all, soonest = 0, nil
    for lane = 1, LANE_COUNT do
      local now = seen[lane]   -- false if it was not looked at, or nothing waited
      if now then waiting[lane] = now.all end
      all = all + (waiting[lane] > 0 and at_limits(lane) and 0 or waiting[lane])
      if now and now.open and now.due then mark_passed(lane) end
    end
    if got < arg.n then soonest = h.see(waiting, arg) end
    for lane = 1, LANE_COUNT do
      if waiting[lane] > 0 and at_limits(lane) then waiting[lane] = 0 end
      if waiting[lane] > 0 and got >= arg.rooms[lane] then
        waiting[lane] = math.min(waiting[lane], seen[lane] and seen[lane].free or h.count(lane, FREE))
      end
    end
    return all, soonest
  end

  function h.done(arg, role, got)
    if not (arg.start and h.mine) then return end
    local load, waits = arg.held + got, role == 1 or role == 2
    for lane = 1, LANE_COUNT do
      local now = seen[lane]
      if now and not now.more then
        load = load + now.own
      elseif now or arg.n == 0 then
        load = load + h.count(lane, h.mine)
      end
    end
    h.set_work(h.mine, load)
    -- A home that waits for work is woken for what comes to it.
    note(h.mine, now_ms(), waits and WAITS or BUSY, arg.worker)
    if role == 1 and got == 0 then h.pass_on(arg.worker) end
  end

  local function state_of(number)
    local last, waits, worker = string.match(call('HGET', SESSIONS, 'w|' .. number) or '', '^(%d+) (%d) (.*)$')
    return tonumber(last or 0), tonumber(waits), worker
  end

  -- Wakes the homes that got something, if they wait for work, once.
  function h.wake_homes()
    for number in pairs(woken) do
      local last, waits, worker = state_of(number)
      if number ~= h.mine and waits == WAITS then
        local watch = call('ZSCORE', WATCH, worker)
        -- @guard affinity: a home is woken for what comes to it
        if watch and tonumber(watch) >= now_ms() then wake_watcher() else wake_alone(worker, '1') end
        note(number, last, WOKEN, worker)
      end
    end
    woken = {}
  end

  -- A watcher was woken and found nothing: perhaps the wake-up was another watcher's.
  function h.pass_on(worker)
    for _, other in ipairs(call('ZRANGEBYSCORE', WATCH, now_ms(), '+inf')) do
      local number = other ~= worker and h.number(other)
      local last, waits = state_of(number or FREE)
      if waits == WOKEN then
        note(number, last, PASSED_ON, other)
        -- @guard affinity: a wake-up reaches the watcher that it was for
        return wake_watcher()
      end
    end
  end

  -- Everything that has changed is written, and who got something is woken. Each script does this once, at its end.
  function h.flush()
    h.write_index()
    h.write_records()
    if next(woken) then h.wake_homes() end
  end

  function h.free(lane, members)   -- members of the index are anybody's
    local kept = shares(lane)
    for i = 1, #members, 200 do
      local words = {kept and 'ZREM' or 'ZADD', HOMES}
      for at = i, math.min(i + 199, #members) do
        if not kept then words[#words + 1] = score(lane, FREE) end
        words[#words + 1] = members[at]
      end
      call(unpack(words))
    end
  end
end
