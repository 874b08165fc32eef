-- @include tenant_state
-- Tenants: their records, their turns, and the index of what waits.
local function add_index(t)
  local MOST_TENANTS, OTHER, SEEN_MS = 2000, 'other', 60000
  local MOST_CREDIT = 4096   -- tokens
  local RECORD, RECORD_BYTES = '<ddddddd', 56

  local function add_records(t)
    local records, dirty, names = {}, {}, {}   -- records by name, and those that have changed; names by what was given

    local function read_record(name, words, lengths, rule)
      local running, requests, charged, tokens, lost, missed, seen = 0, 0, 0, 0, 0, 0, 0
      if words and #words == RECORD_BYTES then
        running, requests, charged, tokens, lost, missed, seen = struct.unpack(RECORD, words)
      end
      local weight, most = 1, nil
      if rule then
        weight, most = string.match(rule, '^(%S+) ?(%d*)')
        weight = tonumber(weight) or 1
      end
      local record = {name = name, new = not words, lengths = lengths or '', running = running, requests = requests, charged = charged, tokens = tokens,
        lost = lost, missed = missed, seen = seen, weight = weight > 0 and weight or 1, most = tonumber(most) or math.huge,
        set = rule, changed = false}
      records[name] = record
      return record
    end

    -- Fetches the records of tenants and their lengths, and what operators have set, if LANES tells of some.
    function t.fetch_records(tenants)
      local some, fields, n = {nil}, {nil, nil}, 0
      for i = 1, #tenants do
        local name = tenants[i]
        if records[name] == nil then
          n, records[name] = n + 1, false
          some[n], fields[2 * n - 1], fields[2 * n] = name, 't|' .. name, 'l|' .. name
        end
      end
      for from = 1, n, 200 do
        local to = math.min(from + 199, n)
        local found = call('HMGET', SERVED, unpack(fields, 2 * from - 1, 2 * to))
        local rules = some_tenants == RULES and call_if_typed('HMGET', TENANTS, unpack(some, from, to)) or {}
        for i = from, to do
          local at = 2 * (i - from)
          read_record(some[i], found[at + 1], found[at + 2], rules[i - from + 1])
        end
      end
    end

    -- The value of the field `tenants` of LANES while a tenant is known.
    function t.rules()
      return (call_if_typed('HLEN', TENANTS) or 0) > 0 and RULES or '1'
    end

    -- Numbers by name; the tenant's weight, and the most that it may run at once.
    function t.record(name)
      if not records[name] then t.fetch_records({name}) end
      return records[name]
    end

    -- The record, for a change of it.
    function t.change(name)
      local record = t.record(name)
      if not record.changed then dirty[#dirty + 1], record.changed = record, true end
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
      if records[name] then records[name].changed = false end
      read_record(name)
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
      for _, record in ipairs(dirty) do
        if record.changed then
          new, record.new, record.changed = new + (record.new and 1 or 0), false, false
          t.write_field('t|' .. record.name, struct.pack(RECORD, record.running, record.requests, math.max(0, record.charged),
            math.max(0, record.tokens), record.lost, record.missed, record.seen))
        end
      end
      dirty = {}
      if new > 0 then count_known(new) end
    end
  end

  local function add_turns(t)
    function t.level_field(lane) return 'level|' .. DIGITS[lane] end
    local function reached(lane) return tonumber(t.get(t.level_field(lane)) or nil) or 0 end

    -- Tokens of the tenant that waits and was charged least, but no less than any that was picked had before its pick: who
    -- comes a request below the level does not lower it for the next.
    function t.level(lane) return math.max(t.least(lane) or 0, reached(lane)) end

    -- A tenant that had so many tokens is picked.
    function t.pass_level(lane, tokens)
      if tokens > reached(lane) then t.put(t.level_field(lane), string.format('%.17g', tokens)) end
    end

    -- A tenant waits, if it may run one more. `bytes`, `limit`: of a request that has come.
    function t.enter(lane, name, bytes, limit)
      local tokens, waiting = t.turn(lane, name)
      t.see(name)
      local record = t.record(name)
      -- @guard tenants: as many of a tenant run at once as it may
      if record.running >= record.most or waiting then return end
      local credit = bytes and math.min(MOST_CREDIT, (t.cost(record, bytes, limit))) / record.weight or 0
      t.set_turn(lane, name, math.max(tokens or 0, t.level(lane) - credit), true)
    end

    function t.leave(lane, name)
      local tokens, waiting = t.turn(lane, name)
      if waiting then t.set_turn(lane, name, tokens, false) end
    end

    function t.add_tokens(lane, name, tokens)
      if tokens == 0 then return end
      local before, waiting = t.turn(lane, name)
      if before or tokens > 0 then t.set_turn(lane, name, (before or t.level(lane)) + tokens, waiting) end
    end

    -- Tenants that neither wait nor run are forgotten in a lane once those that wait were charged so much more that they
    -- would come back with all their credit, or nobody waits.
    function t.forget_turns(lane, most)
      local shares = t.shares(lane)
      local names = t.idle(lane, shares and t.level(lane) or math.huge, most)
      t.fetch_records(names)
      for _, name in ipairs(names) do
        local record = t.record(name)
        local paid = not shares or t.turn(lane, name) <= t.level(lane) - MOST_CREDIT / record.weight
        -- @guard tenants: nothing is left of turns of who has gone
        if record.running == 0 and paid then t.end_turn(lane, name) end
      end
    end
  end

  -- Requests that were ready before the lane had a tenant, or whose index was lost, stand in none. They get there in order
  -- of rank, as far as they are needed: SERVED has the rank and member up to which that is done.
  local function add_walk(t, indexed)
    local chunks = {}   -- by lane: number of those that this call has read

    local function field(lane) return 'walk|' .. DIGITS[lane] end

    -- True while such requests may be left.
    function t.bare(lane) return t.get(field(lane)) and true or false end

    function t.begin_walk(lane)
      t.put(field(lane), '0 ')
      t.enter(lane, '')
    end

    local function reached(lane) return string.match(t.get(field(lane)), '^(%d+) (%S*)$') end

    local function walk(lane)
      local ready, rank, last = ready_key(lane), reached(lane)
      local from = call('ZCOUNT', ready, '-inf', '(' .. rank)
      local to = from + call('ZCOUNT', ready, rank, rank)
      while from < to do   -- the first of equal rank behind `last`
        local middle = math.floor((from + to) / 2)
        if call('ZRANGE', ready, middle, middle)[1] <= last then from = middle + 1 else to = middle end
      end
      local found, rows = call('ZRANGE', ready, from, from + 15, 'WITHSCORES'), {}
      for i = 1, #found, 2 do
        local id = decode_id(found[i])
        if id then
          local fields = fetch_fields(lane, id) or {}   -- XDELed by hand: the pull that picks it counts it
          local bytes, _, _, tenant = skim_entry(lane, id, fields)
          rows[#rows + 1], rank, last = {id, found[i + 1], tenant, fields}, string.format('%.0f', found[i + 1]), found[i]
          if bytes > CHUNK_BYTES then chunks[lane] = chunks[lane] + 8 end   -- bodies are copied
        else
          call('ZREM', ready, found[i])   -- written by hand: dropped
        end
      end
      t.add(lane, rows)
      t.put(field(lane), #found == 32 and rank .. ' ' .. last)
    end

    -- The first members of a tenant in the index, or those after one, and true if it may have more than these.
    function t.heads(lane, name, most, after)
      local found = indexed(lane, name, most, after)
      chunks[lane] = chunks[lane] or 0
      while name == '' and t.bare(lane) and chunks[lane] < 8
          and (#found < most or tonumber(string.sub(found[most], 3, 18)) >= tonumber((reached(lane)))) do
        chunks[lane] = chunks[lane] + 1
        walk(lane)
        found = indexed(lane, name, most, after)
      end
      return found, #found == most or name == '' and t.bare(lane)
    end
  end

  local shared = {}
  add_state(t)
  add_records(t)
  add_turns(t)

  -- No string.format with the names: it ends at a zero byte.
  local function member_of(lane, name, rank, member)
    return DIGITS[lane] .. name .. '\0' .. string.format('%016.0f', rank) .. member .. '\0'
  end

  local function indexed(lane, name, most, after)
    t.write_index()
    local part = DIGITS[lane] .. name
    local from, to = after and '(' .. after or '[' .. part .. '\0', '(' .. part .. '\1'
    return call('ZRANGEBYLEX', WAITING, from, to, 'LIMIT', 0, most)
  end

  -- Number of requests of a tenant in the index; with `rank`, of those before it, and before `member` of the same rank.
  function t.number(lane, name, rank, member)
    t.write_index()
    local from = DIGITS[lane] .. name
    local to = rank and from .. '\0' .. string.format('%016.0f', rank) .. (member or '\255') or from .. '\1'
    return call('ZLEXCOUNT', WAITING, '[' .. from .. '\0', '(' .. to)
  end

  function t.hash(name) return string.sub(redis.sha1hex(name), 1, 8) end

  -- Tokens for its weight that usual requests of a tenant are charged, by the first `most` in the index.
  function t.usual(lane, name, most)
    local record, sum, heads = t.record(name), 0, indexed(lane, name, most)
    for _, member in ipairs(heads) do
      local bytes, limit = string.match(member, '%z(%d*) ?(%d*)$', #name + 19)
      sum = sum + (t.cost(record, tonumber(bytes), tonumber(limit)))
    end
    return (#heads > 0 and sum / #heads or (t.cost(record))) / record.weight
  end

  add_walk(t, indexed)

  -- True if tenants share the lane: something waits in the index, or may be on its way there.
  -- With `anew`, of now; else as it was before the script took something.
  function t.shares(lane, anew)
    if anew or not shared[lane] then
      t.write_index()
      shared[lane] = call('ZRANGEBYLEX', WAITING, '[' .. lane, '(' .. lane + 1, 'LIMIT', 0, 1)[1] or t.bare(lane)
    end
    return shared[lane] and true or false
  end

  -- Entries are ready now: rows of stream id, rank, tenant or nil, and fields.
  function t.add(lane, rows)
    local names, some = {['']=true}, {''}
    for _, row in ipairs(rows) do
      local name = row[3]
      if name and not names[name] and #name <= 256 then names[name], some[#some + 1] = true, name end
    end
    if not some_tenants then
      some_tenants = t.rules()
      call('HSET', LANES, 'tenants', some_tenants)
    end
    t.fetch_records(some)
    t.load_turns(lane, some)
    if not t.shares(lane) then
      shared[lane] = true
      -- @guard tenants: what was ready before them takes turns too
      if call('ZCARD', ready_key(lane)) > #rows then t.begin_walk(lane) end
    end
    for _, row in ipairs(rows) do
      local id, rank, raw, fields = unpack(row, 1, 4)
      local name, bytes, limit = t.name(raw), t.size(fields)
      t.add_to_index(member_of(lane, name, rank, encode_id(id)) .. bytes .. ' ' .. limit)
      t.enter(lane, name, bytes, tonumber(limit))
    end
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
    t.write_state()
    -- @guard tenants: somebody is woken for who may run one more
    if t.unblocked then
      wake_watcher()
      leave_token()
    end
  end
end
