-- @include pace
-- @include info
-- Measures the pace. An arrival is counted where it is read from its lane's stream, which Redis 6.2 does not count: there,
-- times do not know of more urgent requests that are still to come.
local FADE_MS, LONGEST_FADE_MS, FADE_REQUESTS, ARRIVALS_FADE_MS = 10000, 120000, 100, 30000
local MOST_ROWS, MOST_LATEST, MOST_SENDERS = 64, 8, 32

-- Number of entries of a lane that were ever read, and the last of them.
local function came_into(lane)
  local groups = redis.pcall('XINFO', 'GROUPS', lane_key(lane))
  for _, group in ipairs(groups.err and {} or groups) do   -- the key may be missing
    if named(group, 'name') == GROUP then
      return tonumber(named(group, 'entries-read') or nil) or 0, named(group, 'last-delivered-id')
    end
  end
  return 0
end

-- A look at the queue: as `pace`, without what fades; and the number of requests that run.
local function look()
  local waiting, _, all = unpaused()
  local running = 0
  local gone = (tonumber(call('HGET', COUNTS, 'staged') or nil) or 0) - call('ZCARD', DELAYED)
  local now = {at = now_ms(), busy = false, read = {}, last = {}, waits = {}}
  for lane = 1, LANE_COUNT do
    local last
    gone, now.busy, now.waits[lane] = gone - all[lane], now.busy or waiting[lane] > 0, waiting[lane] > 0
    now.read[lane], last = came_into(lane)
    now.last[lane] = last or '0-0'
    running = running + (tonumber(redis.pcall('XPENDING', lane_key(lane), GROUP)[1] or nil) or 0)   -- its group may be missing
  end
  now.gone = gone
  return now, running
end

-- The senders of a lane and their spans until the deadline, fading: the latest entries stand for all that came lately.
-- `more`: number of these; `gone`: true if those that are there no more have gone before others that waited; `passed`, ms.
local function senders_of(lane, before, now, more, gone, passed)
  local known = before and before.senders[LANE_NAMES[lane]] or {gone = 0, who = {}, spans = {}}
  local slowly, sum = math.exp(-passed / ARRIVALS_FADE_MS), 0
  known.gone = known.gone * slowly
  for _, weights in ipairs({known.who, known.spans}) do
    for key, weight in pairs(weights) do
      weight[1] = weight[1] * slowly
      if weight[1] < 0.01 then weights[key] = nil elseif weights == known.who then sum = sum + weight[1] end
    end
  end
  local latest, bytes, to = {}, 0, now.last[lane]
  while more > 0 and #latest < math.min(MOST_LATEST, more) and bytes < CHUNK_BYTES do   -- bodies are copied
    local entry = call('XREVRANGE', lane_key(lane), to, '(' .. before.last[lane], 'COUNT', 1)[1]
    if not entry then break end
    latest[#latest + 1], to = entry, '(' .. entry[1]
    local size, deadline, _, tenant = skim_entry(lane, entry[1], entry[2])
    entry.at = enqueued_ms(lane, entry[1])
    local span = rank_of(lane, entry[1], deadline) - entry.at
    bytes = bytes + size
    entry.span, entry.class = span, tostring(math.floor(4 * math.log(math.max(1, span))))
    entry.who = string.sub(redis.sha1hex(sharing() and sharing().name(tenant) or ''), 1, 8)
  end
  local each = 1
  if #latest == MOST_LATEST or bytes >= CHUNK_BYTES then
    -- @guard pace: a burst does not go on
    more = math.min(more, passed * #latest / math.max(1, now.at - latest[#latest].at),
      math.max(MOST_LATEST, 4 * sum * passed / math.max(1, before.span)))
    each = more / #latest
  elseif gone then
    known.gone = known.gone + math.max(0, more - #latest)
  end
  for _, entry in ipairs(each > 0 and latest or {}) do   -- 0: no time has passed
    local sent, span = known.who[entry.who] or {0}, known.spans[entry.class] or {0, entry.span}
    sent[1], span[1] = sent[1] + each, span[1] + each
    span[2] = span[2] + (entry.span - span[2]) * each / span[1]
    known.who[entry.who], known.spans[entry.class] = sent, span
  end
  local senders = {}
  for who, sent in pairs(known.who) do senders[#senders + 1] = {who, sent[1]} end
  table.sort(senders, function(one, two) return one[2] > two[2] end)
  for i = MOST_SENDERS + 1, #senders do
    known.gone, known.who[senders[i][1]] = known.gone + senders[i][2], nil
  end
  return known
end

-- Tokens that a tenant's next requests are charged, on average, of up to `most` of each of its sets; and the number of all.
local function next_of(lane, t, record, most)
  if record.name == '' then return t.usual(), call('ZCARD', ready_key(lane)) + order().counts[lane].h end
  local sum, some, all = 0, 0, 0
  for _, kind in ipairs({':t:', ':th:'}) do
    local key = order().key(lane, kind, record.name)
    for _, member in ipairs(call('ZRANGE', key, 0, most - 1)) do
      local bytes, limit = string.match(member, '^%S+ (%d+) (%d*)')
      sum, some = sum + (t.cost(record, tonumber(bytes), tonumber(limit))), some + 1
    end
    all = all + call('ZCARD', key)
  end
  return some > 0 and sum / some or (t.cost(record)), all
end

-- The turns of a lane's tenants, for those who tell times; nil unless tenants share it.
local function look_at_turns(lane)
  local t = sharing()
  if not (t and ordering() and order().shares(lane)) then return nil end
  local some, waiting = t.sample(lane, MOST_ROWS)
  local number, names, rows = #some / 2, {}, {}
  for i = 1, number do names[i] = some[2 * i - 1] end
  t.fetch_records(names)
  for i, name in ipairs(names) do
    local record = t.record(name)
    local cost, all = next_of(lane, t, record, math.max(1, math.min(16, math.floor(2 * MOST_ROWS / number))))
    rows[i] = {t.hash(name), tonumber(some[2 * i]), cost / record.weight, all}
  end
  return {each = waiting / math.max(1, number), rows = rows}
end

local function measure_pace()
  local before, now, running = read_pace(), look()
  now.took, now.left, now.span, now.came, now.run, now.senders = 0, 0, 0, {}, 0, {}
  local passed = before and now.at - before.at or 0
  -- @guard pace: no step of a clock counts, and no time in which nobody looked
  if passed < 0 or passed > STALE_MS then passed, before = 0, nil end
  local rate = before and before.took > 0 and before.left / before.took or 1
  local fade = math.exp(-passed / math.min(LONGEST_FADE_MS, math.max(FADE_MS, FADE_REQUESTS / math.max(rate, 1e-6))))
  local slowly = math.exp(-passed / ARRIVALS_FADE_MS)
  for lane = 1, LANE_COUNT do
    local more = before and math.max(0, now.read[lane] - before.read[lane]) or 0
    now.came[lane] = before and before.came[lane] * slowly + more or 0
    local waited = before and before.waits[lane] and now.waits[lane]
    now.senders[LANE_NAMES[lane]] = senders_of(lane, before, now, more, waited, passed)
  end
  if before then
    now.took, now.left, now.span, now.run = before.took, before.left, before.span * slowly + passed, before.run
    -- An idle fleet does not show how fast it is.
    if now.busy and before.busy then
      now.took, now.left = before.took * fade + passed, before.left * fade + math.max(0, now.gone - before.gone)
      local run = running * now.took / math.max(1, now.left)
      now.run = now.run > 0 and now.run + (1 - fade) * (run - now.run) or run
    end
  end
  now.turns = {}
  for lane = 1, LANE_COUNT do now.turns[LANE_NAMES[lane]] = look_at_turns(lane) end
  call('SET', PACE, cjson.encode(now))
end
