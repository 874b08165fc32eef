-- @include finish
-- @include pace
-- Deadlines are judged at the pick, if the worker tells how long its requests take: what cannot be done in time even if
-- it starts now is not started.
local judge = {}

-- Class of length: half octaves of the output that requests of its tenant with such a limit have had, else of its limit;
-- and a hash of the tenant.
local function length_class(fields, tenant)
  local bytes, limit = body_size(fields)
  limit = tonumber(limit)
  local shared, class = sharing(), limit and tostring(half_octave(limit)) or 'none'
  if shared then
    tenant = shared.name(tenant)
    local cost, prompt = shared.cost(shared.record(tenant), bytes, limit)
    class = tostring(half_octave(cost - prompt))
    -- @guard judge: runs of a tenant teach no other's class
    if tenant ~= '' then class = class .. ' ' .. string.sub(redis.sha1hex(tenant), 1, 8) end
  end
  return class
end

-- `arg`: of the pull; its `needs` are the ms that requests of each class need at least, as JSON or decoded. Returns the class of a
-- claimed entry; nil if it has been ended.
function judge.judge(claimed, deadline, tenant, arg)
  if type(arg.needs) == 'string' then arg.needs = cjson.decode(arg.needs) end
  local lane, id, attempt, _, fields = unpack(claimed)
  local class, left = length_class(fields, tenant), deadline - now_ms()
  local needed = arg.needs[class]
  -- @guard judge: what an earlier run has done is not known
  if attempt > 1 or claimed[8] ~= '' then return class end
  if not needed or left >= needed then return class end
  local why = string.format('%.0f ms are left until the deadline, and requests of this length take at least %.0f ms', left,
    needed)
  local letter = {status = 'expired', attempts = 0}
  letter.error = openai_error(why, 'timeout', 'deadline', 'deadline_out_of_reach')
  end_with_dead_letter(lane, id, fields, read_entry(lane, id, fields), letter)
  return nil
end

local expected   -- {of = as expectations() returns it, known = {{ms until it is taken, ms of its run}…}}

-- Ends an entry that asks for it if it will likely be late: on its arrival, before it waits. `rows`: those of its lane that arrived
-- with it, as the hook `became_ready` takes them. Returns true if it has been ended.
function judge.refuse(lane, id, fields, deadline, tenant, rows)
  expected = expected or {of = expectations(), known = {}}
  local t, more_own = sharing(), 0
  local name = t and t.name(tenant) or ''
  for _, row in ipairs(rows) do if not t or t.name(row[7]) == name then more_own = more_own + 1 end end
  local own = number_before(lane, name, deadline) + more_own
  -- Those of a tenant in about the same place are told the same: many may come at once.
  local near, left = math.floor(16 * math.log(own + 1)), math.floor(16 * math.log(math.max(1, deadline - now_ms())))
  local key = table.concat({lane, near, left, name}, ' ')
  if not expected.known[key] then
    local _, wait, usual = expected.of(lane, deadline, tenant, #rows, more_own)
    expected.known[key] = {wait, usual}
  end
  local ms, run = unpack(expected.known[key])
  -- @guard refuse: what may be in time waits
  if not ms or now_ms() + ms + run <= deadline then return false end
  local entry = read_entry(lane, id, fields)
  -- @guard refuse: an id that has ended is a duplicate
  if answered(entry.id) then return false end
  local why = string.format('it would be taken in %.1f s, and would run for %.1f s: that is %.1f s after its deadline',
    ms / 1000, run / 1000, (now_ms() + ms + run - deadline) / 1000)
  local letter = {status = 'expired', attempts = 0, error = openai_error(why, 'timeout', 'if_late', 'likely_late')}
  end_with_dead_letter(lane, id, fields, entry, letter)
  return true
end

return judge
