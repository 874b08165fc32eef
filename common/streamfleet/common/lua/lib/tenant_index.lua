-- @include entry
-- @include tenant_state
-- Tenants: their records, their turns, and the index of what waits.
local function add_index(t)
  local MOST_TENANTS, OTHER, SEEN_MS = 2000, 'other', 60000

  local function add_records(t)
    local records, dirty, names, rules   -- by name; names by what was given
    table.insert(t.begins, function() records, dirty, names, rules = {}, {}, {}, {} end)

    local function read_record(name, words, rule)
      local running, requests, charged, tokens, lost, missed, seen =
        string.match(words or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
      local weight, most
      if rule then weight, most = string.match(rule, '^(%S+) ?(%d*)$') end
      weight = tonumber(weight) or 1
      records[name] = {new = not words, running = tonumber(running) or 0, requests = tonumber(requests) or 0,
        charged = tonumber(charged) or 0, tokens = tonumber(tokens) or 0, lost = tonumber(lost) or 0,
        missed = tonumber(missed) or 0, seen = tonumber(seen) or 0, weight = weight > 0 and weight or 1,
        most = tonumber(most) or math.huge, set = rule}
      return records[name]
    end

    -- Fetches the records of tenants and their lengths, and what operators have set, if SCHED tells of some.
    function t.fetch_records(tenants)
      local fields, some = {}, {}
      for _, name in ipairs(tenants) do
        if not records[name] and not rules[name] then
          fields[#fields + 1], fields[#fields + 2], some[#some + 1] = 't|' .. name, 'l|' .. name, name
        end
      end
      if #some == 0 then return end
      t.fetch(fields)
      for from = 1, some_tenants == RULES and #some or 0, 400 do
        local part = {unpack(some, from, math.min(from + 399, #some))}
        for i, rule in ipairs(call_if_typed('HMGET', TENANTS, unpack(part)) or {}) do rules[part[i]] = rule end
      end
    end

    -- The value of the field `tenants` of SCHED while a tenant is known.
    function t.rules()
      local number = redis.pcall('HLEN', TENANTS)
      return type(number) == 'number' and number > 0 and RULES or '1'
    end

    -- Numbers by name; the tenant's weight, and the most that it may run at once.
    function t.record(name)
      if records[name] then return records[name] end
      t.fetch_records({name})
      return read_record(name, t.get('t|' .. name), rules[name])
    end

    -- The record, for a change of it.
    function t.change(name)
      local record = t.record(name)
      dirty[name] = record
      return record
    end

    -- A tenant is there.
    function t.see(name)
      if now_ms() - t.record(name).seen >= SEEN_MS then t.change(name).seen = now_ms() end
    end

    local function count_known(more)
      t.put('known', string.format('%.0f', math.max(0, (tonumber(t.get('known') or nil) or 0) + more)))
    end

    function t.forget_record(name)
      records[name], dirty[name] = nil, nil
      t.put('t|' .. name, false)
      t.put('l|' .. name, false)
      count_known(-1)
    end

    -- The name under which a tenant is counted: anybody may XADD any tenant.
    function t.name(raw)
      if not raw or raw == '' then return '' end
      if names[raw] then return names[raw] end
      local name = raw
      if #raw > 256 or string.find(raw, '%c') then
        name = OTHER
      -- @guard tenants: their number is bounded
      elseif t.record(raw).new and not t.record(raw).set and (tonumber(t.get('known') or nil) or 0) >= MOST_TENANTS then
        name = OTHER
      end
      names[raw] = name
      return name
    end

    function t.write_records()
      local new = 0
      for name, record in pairs(dirty) do
        new, record.new = new + (record.new and 1 or 0), false
        t.put('t|' .. name, string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f', record.running, record.requests,
          math.max(0, record.charged), math.max(0, record.tokens), record.lost, record.missed, record.seen))
      end
      dirty = {}
      if new > 0 then count_known(new) end
    end
  end

  local function add_turns(t)
    -- Tokens of the tenant that waits and was charged least; else of the one that waited last.
    function t.level(lane)
      return tonumber(t.lowest(lane, 1)[2] or t.get('left|' .. lane) or 0) or 0
    end

    function t.enter(lane, name)
      local tokens, waiting = t.turn(lane, name)
      t.see(name)
      -- @guard tenants: as many of a tenant run at once as it may
      if t.record(name).running >= t.record(name).most then return end
      -- A little below: at equal tokens, who comes goes before who has been there.
      if not waiting then t.set_turn(lane, name, math.max(tokens or 0, t.level(lane) - 0.001), true) end
    end

    function t.leave(lane, name)
      local tokens, waiting = t.turn(lane, name)
      if not waiting then return end
      t.set_turn(lane, name, tokens, false)
      t.put('left|' .. lane, string.format('%.3f', tokens))
    end

    function t.add_tokens(lane, name, tokens)
      if tokens == 0 then return end
      local before, waiting = t.turn(lane, name)
      if before or tokens > 0 then t.set_turn(lane, name, (before or t.level(lane)) + tokens, waiting) end
    end

    -- A tenant that neither waits nor runs is forgotten in a lane once those that wait were charged as much, or nobody waits.
    function t.forget_turn(lane, name)
      if t.record(name).running > 0 then return end
      local tokens, waiting = t.turn(lane, name)
      -- @guard tenants: nothing is left of turns of who has gone
      if tokens and not waiting and (not t.shares(lane) or tokens <= t.level(lane)) then t.end_turn(lane, name) end
    end
  end

  -- Requests that were ready before the lane had a tenant stand in no index. They get there in order of rank, as far as
  -- they are needed: SCHED has the rank and member up to which that is done, and a member above theirs.
  local function add_walk(t, indexed)
    local bare
    table.insert(t.begins, function() bare = {} end)

    function t.bare(lane)
      if bare[lane] == nil then
        local rank, last, mark = string.match(call('HGET', SCHED, 'bare:' .. lane) or '', '^(%d+) (%S*) (%S+)$')
        bare[lane] = rank and {rank = tonumber(rank), last = last, mark = mark, walks = 0} or false
      end
      return bare[lane] and not bare[lane].done and bare[lane]
    end

    -- Later entries are put into the index at once.
    function t.begin_walk(lane, mark)
      look_at_sched()
      mark = mark or last_ahead[lane] and '~' or encode_id(string.format('%.0f-0', now_ms() + 1))
      bare[lane] = {rank = 0, last = '', mark = mark, walks = 0}
    end

    local function walk(lane, at)
      local ready, rank = ready_key(lane), string.format('%.0f', at.rank)
      local from = call('ZCOUNT', ready, '-inf', '(' .. rank)
      local to = from + call('ZCOUNT', ready, rank, rank)
      while from < to do   -- the first of equal rank behind `last`
        local middle = math.floor((from + to) / 2)
        if call('ZRANGE', ready, middle, middle)[1] <= at.last then from = middle + 1 else to = middle end
      end
      local rows = call('ZRANGE', ready, from, from + 15, 'WITHSCORES')
      for i = 1, #rows, 2 do
        local id = decode_id(rows[i])
        if id and rows[i] < at.mark then
          local fields = fetch_fields(lane, id) or {}   -- XDELed by hand: the pull that picks it counts it
          local bytes, _, _, tenant = skim_entry(lane, id, fields)
          t.add(lane, id, rows[i + 1], tenant, fields)
          if bytes > CHUNK_BYTES then at.walks = at.walks + 8 end   -- bodies are copied
        end
        if id then at.rank, at.last = tonumber(rows[i + 1]), rows[i] end
      end
      at.walks, at.done = at.walks + 1, #rows < 32
    end

    -- The first members of a tenant in the index, and true if it may have more than these.
    function t.heads(lane, name, most)
      local found, at = indexed(lane, name, most), name == '' and t.bare(lane)
      while at and not at.done and at.walks < 8
          and (#found < most or tonumber(string.sub(found[most], 3, 18)) >= at.rank) do
        walk(lane, at)
        found = indexed(lane, name, most)
      end
      return found, #found == most or at and not at.done
    end

    function t.write_walks()
      for lane, at in pairs(bare) do
        if at and at.done then
          call('HDEL', SCHED, 'bare:' .. lane)
        elseif at then
          call('HSET', SCHED, 'bare:' .. lane, string.format('%.0f %s %s', at.rank, at.last, at.mark))
        end
      end
    end
  end

  local shared
  table.insert(t.begins, function() shared, t.unblocked = {}, false end)
  add_state(t)
  add_records(t)
  add_turns(t)

  -- No string.format with the names: it ends at a zero byte.
  local function member_of(lane, name, rank, member)
    return lane .. name .. '\0' .. string.format('%016.0f', rank) .. member .. '\0'
  end

  local function indexed(lane, name, most)
    t.write_index()
    local from, to = '[' .. lane .. name .. '\0', '(' .. lane .. name .. '\1'
    return call('ZRANGEBYLEX', WAITING, from, to, 'LIMIT', 0, most)
  end

  add_walk(t, indexed)

  -- True if tenants share the lane: something waits in the index, or what was there before them still waits.
  -- With `anew`, of now; else as it was before the script took something.
  function t.shares(lane, anew)
    if anew or not shared[lane] then
      t.write_index()
      shared[lane] = call('ZRANGEBYLEX', WAITING, '[' .. lane, '(' .. lane + 1, 'LIMIT', 0, 1)[1] or t.bare(lane)
    end
    return shared[lane] and true or false
  end

  local function begin_sharing()
    if some_tenants then return end
    some_tenants = t.rules()
    call('HSET', SCHED, 'tenants', some_tenants)
  end

  -- An entry becomes ready. `staged`: number of entries that are staged with it, if it was never ready before.
  function t.add(lane, id, rank, raw, fields, staged)
    if not t.shares(lane) then
      if not raw then return end
      shared[lane] = true
      begin_sharing()
      if (staged or 1) > 1 or call('ZCARD', ready_key(lane)) > 0 then
        -- @guard tenants: what was ready before them takes turns too
        t.begin_walk(lane, staged and encode_id(id))
        t.enter(lane, '')
      end
    end
    local name, bytes, limit = t.name(raw), t.size(fields)
    t.add_to_index(member_of(lane, name, rank, encode_id(id)) .. bytes .. ' ' .. limit)
    t.enter(lane, name)
  end

  -- The same for many: rows of its other arguments.
  function t.add_all(lane, rows)
    local names, some = {['']=true}, {''}
    for _, row in ipairs(rows) do
      local name = row[3]
      if name and not names[name] and #name <= 256 then names[name], some[#some + 1] = true, name end
    end
    begin_sharing()
    t.fetch_records(some)
    t.load_turns(lane, some)
    for _, row in ipairs(rows) do t.add(lane, unpack(row, 1, 5)) end
  end

  -- An entry is ready no more, and no pull took it. `rank`: as in the ready set; nothing is done without one.
  function t.remove(lane, id, raw, rank)
    if not rank or not t.shares(lane) then return end
    local done = {}
    t.write_index()
    for _, name in ipairs({t.name(raw), OTHER, ''}) do   -- its name may have been another when it came
      local member = member_of(lane, name, rank, encode_id(id))
      local gone = 0
      -- @guard tenants: what is ready no more waits no more
      if not done[name] then gone = call('ZREMRANGEBYLEX', WAITING, '[' .. member, '(' .. member .. '\255') end
      done[name] = true
      if gone > 0 and not t.heads(lane, name, 1)[1] then t.leave(lane, name) end
    end
  end

  -- Everything that has changed is written. Each script does this once, at its end.
  function t.flush()
    t.write_records()
    t.write_walks()
    t.write_state()
    -- @guard tenants: somebody is woken for who may run one more
    if t.unblocked then
      tell(WAKE, 'MAXLEN', 1, '*', 't', '1')
      if call('LLEN', BENCH) == 0 then call('RPUSH', BENCH, '1') end
    end
  end
end
