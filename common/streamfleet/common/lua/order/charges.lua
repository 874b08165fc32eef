-- @include tenant_lengths
-- Tenants: charges. A charge is '<prompt> <output> <weight> <kept> <bytes>:<limit> <counted> <tenant>': tokens that a run was
-- charged, 0 if none runs; its tenant's weight at the pick; `kept`, tokens that earlier runs generated; bytes of the body, and
-- asked limit, by which lengths are learnt; and 1 if the run counts against its tenant's limit.
local charges = {}   -- by field: what is known of them; false for none

local function charge_field(lane, id) return 'c|' .. DIGITS[lane] .. '|' .. id end

local function charge_in(words)
  local prompt, output, weight, kept, bytes, limit, counted, name =
    string.match(words or '', '^(%d+) (%d+) (%S+) (%d+) (%d+):(%d*) ([01]) (.*)$')
  if not prompt then return false end
  return {prompt = tonumber(prompt), cost = prompt + output, weight = tonumber(weight) or 1, kept = tonumber(kept), bytes = tonumber(bytes),
    limit = tonumber(limit), counted = counted == '1', name = name}
end

local function charge_words(c, prompt, output, weight, kept)
  return string.format('%.0f %.0f %s %.0f %.0f:%s %s ', prompt, output, weight, kept, c.bytes, c.limit or '', c.counted and '1' or '0') .. c.name
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

-- Reads all that is needed to settle runs. `rows`: lane and stream id of each.
function t.prepare(rows)
  local fields, some = {}, {}
  for i, row in ipairs(rows) do fields[i] = charge_field(row[1], row[2]) end
  t.fetch(fields)
  for _, row in ipairs(rows) do
    local charge = charge_of(row[1], row[2])
    if charge then
      some[row[1]] = some[row[1]] or {}
      table.insert(some[row[1]], charge.name)
    end
  end
  for lane, each in pairs(some) do
    t.fetch_records(each)
    t.load_turns(lane, each)
  end
end

-- A run that counts against a limit has ended: its tenant may be in turn again.
function t.end_run(name)
  local record = t.change(name)
  local blocked = record.running >= record.most
  record.running = math.max(0, record.running - 1)
  for lane = 1, blocked and record.running < record.most and LANE_COUNT or 0 do
    if order() and order().shares(lane) and order().waits(lane, name) then
      -- @guard tenants: who may run one more waits again
      t.enter(lane, name)
      t.unblocked = t.unblocked or lane
    end
  end
end

-- A run has ended: it is charged `cost` in place of what it was charged before.
local function settle_run(lane, charge, cost)
  if charge.cost == 0 then return end
  t.add_tokens(lane, charge.name, (cost - charge.cost) / charge.weight)
  local record = t.change(charge.name)
  record.charged = record.charged + cost
  if charge.counted then t.end_run(charge.name) end
end

-- Returns, by place of these stream ids: tokens that earlier runs generated; the fields of their charges; and tokens for its
-- weight of a charge that nobody has settled, which is given back.
function t.kept_of(lane, ids)
  local fields, kept, unsettled = {nil}, {nil}, {nil}
  for i = 1, #ids do fields[i] = charge_field(lane, ids[i]) end
  fields[#ids + 1] = t.level_field(lane)
  t.fetch(fields)
  for i = 1, #ids do
    local before = charge_in(t.get(fields[i]))
    if before then settle_run(lane, before, 0) end
    kept[i], unsettled[i] = before and before.kept or 0, before and before.cost / before.weight or 0
  end
  return kept, fields, unsettled
end

-- A row that was picked runs, and is charged.
function t.charge(field, row, weight, kept)
  t.write_field(field, charge_words(row, row.prompt, row.cost - row.prompt, weight, kept))
end

-- A worker's outcome, before its entry is removed. `run`: fields of its result. `held`: output tokens for its time in the
-- engine, where its use was not counted; '' if it was.
function t.settle(lane, id, status, run, held)
  local charge, field = charge_of(lane, id)
  if not charge or charge.cost == 0 then return end
  local prompt, output = used(run.usage)
  local cost = status == 'succeeded' and charge.cost or 0
  if prompt and held == '' then
    -- Output of earlier runs that this one went on with is in its usage, and is charged already.
    cost = prompt + output - math.min(charge.kept, tonumber(run.resumed_tokens) or 0)
  -- @guard tenants: what nobody counted is charged for its time in the engine
  elseif run.waited_ms then
    cost = (prompt or charge.prompt) + math.max(output, tonumber(held) or charge.cost - charge.prompt)
  end
  local record = t.change(charge.name)
  record.tokens, record.requests, record.seen = record.tokens + cost + charge.kept, record.requests + 1, now_ms()
  record.missed = record.missed + (status == 'expired' and 1 or 0)
  -- @guard tenants: a charge is settled by what was used
  settle_run(lane, charge, cost)
  put_charge(field, false)
  if prompt and status == 'succeeded' then learn(charge, prompt, output) end
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
  put_charge(field, charge.kept + stays > 0 and charge_words(charge, 0, 0, charge.weight, charge.kept + stays))
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
