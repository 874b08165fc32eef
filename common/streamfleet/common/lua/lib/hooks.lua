-- @include entry
-- @include interrupted
-- @include wake
-- The hooks: all that verbs tell the policies of the order, tenants and homes (policies/tenants.lua, policies/homes.lua). Each
-- policy has a function here that returns its table of functions, and makes it at the first call. No policy is made while no
-- request has its label. Policies ask each other by them too.
local HOOKS, sharing, homing, homes, make_ready = {}
do
  local HOMING = '1'             -- value of the field `sessions` of LANES while some have homes
  local BEGINNING_BYTES = 1024   -- 256 tokens, because less is read again as quickly as it is found
  local made_tenants, made_homes   -- nil until asked for; false where a key was overwritten by hand
-- @policy tenants
-- @policy homes

  local function tenants()
    if made_tenants == nil then made_tenants = make_tenants() end
    return made_tenants
  end

  -- The same, if a tenant was given lately.
  function sharing()
    if not queue_told then look_at_queue() end
    return some_tenants and tenants()
  end

  function homes()
    if made_homes == nil then made_homes = make_homes() end
    return made_homes
  end

  -- The same, if a session was given lately.
  function homing()
    if not queue_told then look_at_queue() end
    return some_sessions == HOMING and homes()
  end

  -- The rank of an entry that becomes ready: its deadline, or what stands for one; earlier where the queue ranks by program.
  local function rank_now(lane, id, deadline, fields)
    local rank = rank_of(lane, id, deadline)
    if cfg.rank_by_program ~= 'on' then return rank end
    return homes() and homes().rank(lane, id, deadline, fields, rank) or rank
  end

  -- `ranks`: as ZADD takes them.
  local function find_homes(lane, rows, ranks)
    for i = 1, #rows do
      local row = rows[i]
      local homed = row[8] or some_sessions == HOMING or row[4] >= BEGINNING_BYTES
      if homed and homes() then homes().place(lane, row[1], ranks[2 * i + 1], row[3]) end
    end
  end

  -- Entries become ready: rows of stream id, member of the ready set, fields, bytes, deadline, given id, tenant, session. The time
  -- behind their ranks must be kept by now. `back`: they wait again, and so tenants may share the lane before their homes are
  -- looked for. Returns how many were not ready before.
  function HOOKS.became_ready(lane, rows, back)
    local add, shared, n = {'ZADD', ready_key(lane)}, sharing(), 2
    local in_turn = shared and shared.shares(lane) and {} or nil
    for i = 1, #rows do
      local id, member, fields, _, deadline, _, tenant = unpack(rows[i], 1, 7)
      local rank = rank_now(lane, id, deadline, fields)
      add[n + 1], add[n + 2], n = rank, member, n + 2
      if tenant then in_turn = in_turn or {} end
      if in_turn then in_turn[#in_turn + 1] = {id, rank, tenant, fields} end
    end
    if not back then find_homes(lane, rows, add) end
    local added = rows[1] and call(unpack(add)) or 0
    if in_turn and in_turn[1] and tenants() then tenants().add(lane, in_turn) end
    if back then find_homes(lane, rows, add) end
    return added
  end

  -- One entry becomes ready again. Returns its size, and 1 unless it was ready before.
  function make_ready(lane, id, fields)
    keep_enqueued_ms(lane, id)
    local bytes, deadline, given, tenant, _, session = skim_entry(lane, id, fields)
    return bytes, HOOKS.became_ready(lane, {{id, encode_id(id), fields, bytes, deadline, given, tenant, session}}, true)
  end

  -- An entry is ready no more, and no pull takes it: it was cancelled, its deadline has passed, or its rank changes. Returns
  -- its rank; false if it was not ready.
  function HOOKS.left(lane, id, fields)
    local rank, shared, at_home = call('ZSCORE', ready_key(lane), encode_id(id)), sharing(), homing()
    if not rank then return false end
    if at_home then at_home.remove(lane, {{rank, encode_id(id)}}) end
    if shared then
      local _, _, _, tenant = skim_entry(lane, id, fields)
      shared.remove(lane, id, tenant, rank)
    end
    -- @guard leave: no longer ready
    call('ZREM', ready_key(lane), encode_id(id))
    return rank
  end

  -- A pull has taken entries: stream ids; and by place the tenants that they name, and the fields of those that run. The others
  -- were ended, or had vanished.
  function HOOKS.taken(lane, ids, names, runs)
    local shared, at_home = sharing(), homing()
    if shared then shared.claimed(lane, ids, names, runs) end
    if at_home then at_home.claimed(lane, ids, runs) end
  end

  -- A run ends before its request does. `generated`: number of tokens that its tenant stays charged for; nil if its work was
  -- lost. `held`: of a failed attempt, output tokens for its time in the engine ('all': as many as were expected), or false.
  function HOOKS.handed_back(lane, id, generated, held)
    local shared = sharing()
    if shared then shared.back(lane, id, generated, held) end
  end

  -- Requests end with these entries. `late`: the tenant of one that has expired before it ran, '' for none; else nil.
  function HOOKS.ended(lane, ids, late)
    local shared = sharing()
    if shared and late then shared.missed(late) end
    if shared then shared.drop(lane, ids) end
  end

  -- A worker's outcomes are about to be told one by one: rows of lane and stream id.
  function HOOKS.will_end(rows)
    local shared = sharing()
    if shared then shared.prepare(rows) end
  end

  -- A run has ended with its request. `values`: field-value pairs of its result, n in number. `held`: as in handed_back, '' if
  -- its use was counted.
  function HOOKS.run_ended(lane, id, status, values, n, held)
    local shared, run = sharing(), {}
    for i = 1, shared and n or 0, 2 do run[values[i]] = values[i + 1] end
    if shared then shared.settle(lane, id, status, run, held) end
  end

  -- A worker holds so many requests less.
  function HOOKS.freed(worker, number)
    local at_home = homing()
    local home = at_home and at_home.number(worker)
    -- @guard affinity: what has ended is no load
    if home then at_home.add_work(home, -number) end
  end

  -- A worker has gone.
  function HOOKS.worker_gone(worker)
    if homing() then homes().retire(worker) end
  end

  -- A call ends: what the policies have changed is written.
  function HOOKS.write_changes()
    if made_tenants then made_tenants.flush() end
    if made_homes then made_homes.flush() end
  end
end
