-- Tenants: charges. A charge is '<prompt> <output> <weight> <kept> <class> <tenant>': the tokens that it was charged for its
-- run, 0 if none runs, and the weight that counted; `kept`, what earlier runs generated; and its class of length.

local function add_charges(t)
  local charges = {}   -- by field: what is known of them; false for none
  -- picks: stream id to what the last `pop` charged for it; ranks: stream id to its rank in the ready set; reached: by lane,
  -- the most tokens that one had when it was picked
  t.picks, t.ranks, t.reached = {}, {}, {}

  local function charge_field(lane, id) return 'c|' .. DIGITS[lane] .. '|' .. id end

  local function charge_in(words)
    if not words then return false end
    local prompt, output, weight, kept, class, name = string.match(words, '^(%d+) (%d+) (%S+) (%d+) (%S+) (.*)$')
    if not prompt then return false end
    return {prompt = tonumber(prompt), cost = prompt + output, weight = tonumber(weight) or 1, kept = tonumber(kept),
      class = class, name = name}
  end

  local function charge_of(lane, id)
    local field = charge_field(lane, id)
    if charges[field] == nil then charges[field] = charge_in(t.get(field)) end
    return charges[field], field
  end

  local function put_charge(field, words)   -- false: it goes
    charges[field] = nil
    t.put(field, words)
  end

  -- Reads what settling these needs: rows of lane and stream id.
  function t.prepare(rows)
    local fields, names = {}, {}
    for i, row in ipairs(rows) do fields[i] = charge_field(row[1], row[2]) end
    t.fetch(fields)
    for _, row in ipairs(rows) do
      local charge = charge_of(row[1], row[2])
      if charge then
        names[row[1]] = names[row[1]] or {}
        table.insert(names[row[1]], charge.name)
      end
    end
    for lane, some in pairs(names) do
      t.fetch_records(some)
      t.load_turns(lane, some)
    end
  end

  local function end_run(name)
    local record = t.change(name)
    local blocked = record.running >= record.most
    record.running = math.max(0, record.running - 1)
    for lane = 1, blocked and record.running < record.most and LANE_COUNT or 0 do
      if t.heads(lane, name, 1)[1] then
        -- @guard tenants: who may run one more waits again
        t.enter(lane, name)
        t.unblocked = true
      end
    end
  end

  -- A run has ended, which is charged `cost` in place of what it was charged before.
  local function settle_run(lane, charge, cost)
    if charge.cost == 0 then return end
    t.add_tokens(lane, charge.name, (cost - charge.cost) / charge.weight)
    local record = t.change(charge.name)
    record.charged = record.charged + cost - charge.cost
    end_run(charge.name)
  end

  -- `pick`: what is charged already, in its record and its turn; nil for an entry that stood in no index.
  local function charge_run(lane, name, fields, before, pick)
    local record = pick and pick.record or t.change(name)
    local cost, prompt, class
    if pick and pick.bytes then
      cost, prompt, class = pick.cost, pick.prompt, pick.class
    else
      local bytes, limit = t.size(fields)
      cost, prompt, class = t.cost(record, bytes, tonumber(limit))
      t.add_tokens(lane, name, (cost - (pick and pick.cost or 0)) / record.weight)
    end
    if not pick then record.running = record.running + 1 end
    record.charged, record.seen = record.charged + cost, now_ms()
    return string.format('%d %d %s %d %s ', prompt, cost - prompt, record.weight, before and before.kept or 0, class) .. name
  end

  -- Entries that a pull took: stream ids; and by place the tenants that they name, and the fields of those that run, which
  -- are charged. The others were ended.
  function t.claimed(lane, ids, names, runs)
    local charged = {nil, nil}
    for i = 1, #ids do charged[i] = charge_field(lane, ids[i]) end
    charged[#ids + 1] = t.level_field(lane)
    t.fetch(charged)
    if t.reached[lane] then t.pass_level(lane, t.reached[lane]) end
    for i = 1, #ids do
      local pick, fields = t.picks[ids[i]], runs[i]
      local name = fields and (pick and pick.name == names[i] and pick.name or t.name(names[i]))
      if pick and name ~= pick.name then
        -- @guard tenants: what did not run is not charged
        t.add_tokens(lane, pick.name, -pick.cost / t.record(pick.name).weight)
        end_run(pick.name)
        pick = nil
      end
      if fields then
        local before = charge_in(t.get(charged[i]))
        -- @guard tenants: a charge that nobody settled is given back
        if before then settle_run(lane, before, 0) end
        -- @guard tenants: a pick is charged
        t.write_field(charged[i], charge_run(lane, name, fields, before, pick))
      end
    end
  end

  -- A worker's outcome, before its entry is removed. `run`: fields of its result. `held`: output tokens for its time in the
  -- engine, where its use was not counted; '' if it was.
  function t.settle(lane, id, status, run, held)
    local charge, field = charge_of(lane, id)
    if not charge or charge.cost == 0 then return end
    local prompt, output = t.used(run.usage)
    local cost = status == 'succeeded' and charge.cost or 0
    if prompt and held == '' then
      -- Output of earlier runs that this one went on with is in its usage, and is charged already.
      cost = prompt + output - math.min(charge.kept, tonumber(run.resumed_tokens) or 0)
    -- @guard tenants: what nobody counted is charged for its time in the engine
    elseif run.waited_ms then
      cost = (prompt or charge.prompt) + math.max(output, tonumber(held) or charge.cost - charge.prompt)
    end
    local record = t.change(charge.name)
    record.tokens, record.requests = record.tokens + cost + charge.kept, record.requests + 1
    record.missed = record.missed + (status == 'expired' and 1 or 0)
    -- @guard tenants: a charge is settled by what was used
    settle_run(lane, charge, cost)
    put_charge(field, false)
    if prompt and status == 'succeeded' then t.learn(charge, prompt, output) end
  end

  -- An entry goes back. Of its charge stays `generated`, a number of tokens, or for a failed attempt its prompt and
  -- `held`, output tokens for its time in the engine ('all': as many as were expected). Without both its work was lost,
  -- for which nobody is charged.
  function t.back(lane, id, generated, held)
    local charge, field = charge_of(lane, id)
    if not charge or charge.cost == 0 then return end
    -- @guard tenants: what was generated stays charged
    local stays = generated
    -- @guard tenants: a failed attempt is charged for its time in the engine
    if held then stays = charge.prompt + (tonumber(held) or charge.cost - charge.prompt) end
    if not stays then t.change(charge.name).lost = t.record(charge.name).lost + charge.cost end
    stays = stays or 0
    settle_run(lane, charge, stays)
    if charge.kept + stays > 0 then
      put_charge(field, table.concat({0, 0, charge.weight, charge.kept + stays, charge.class, charge.name}, ' '))
    else
      put_charge(field, false)
    end
  end

  -- Entries are removed. A run that nobody has settled is refunded.
  function t.drop(lane, ids)
    for _, id in ipairs(ids) do
      local charge, field = charge_of(lane, id)
      if charge then
        settle_run(lane, charge, 0)
        local record = t.change(charge.name)
        record.tokens = record.tokens + charge.kept
        put_charge(field, false)
      end
    end
  end

  -- A request of a tenant has expired before it ran.
  function t.missed(raw)
    local record = t.change(t.name(raw))
    record.missed, record.seen = record.missed + 1, now_ms()
  end
end
