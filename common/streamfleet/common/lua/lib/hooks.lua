-- @include entry
-- @include interrupted
-- @include wake
-- The hooks: all that verbs tell the policies of the order (lua/order). Each policy has a function here that returns its table
-- of functions, and makes it at the first call. No policy is made while nothing has a label. Policies call these functions too.
-- The class of a length, in tokens: its half octave.
local function half_octave(tokens) return math.floor(2 * math.log(tokens + 1) / math.log(2)) end

local HOOKS, body_size, sharing, homing, ordering, homes, tenants, order, make_ready = {}
do
  local HOMING = '1'             -- value of the field `sessions` of LANES while some have homes
  local BEGINNING_BYTES = 1024   -- 256 tokens, because less is read again as quickly as it is found
  local made_size, made_order, made_tenants, made_homes   -- nil until asked for; false where a key was overwritten by hand
-- @policy lengths
-- @policy order
-- @policy tenants
-- @policy homes

  -- Returns the bytes of an entry's body, and as text the limit of output that the engine takes; '' for none.
  function body_size(fields)
    made_size = made_size or make_lengths()
    return made_size(fields)
  end

  function order()
    if made_order == nil then made_order = make_order() end
    return made_order
  end

  function tenants()
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

  -- The order, if something waits with a label.
  function ordering()
    if labelled == nil then labelled = call_if_typed('HGET', LANES, 'labelled') or false end
    return (labelled or made_order) and order()
  end

  -- The rank of an entry that becomes ready: its deadline, or what stands for one; earlier where the queue ranks by program.
  local function rank_now(lane, id, deadline, fields)
    local rank = rank_of(lane, id, deadline)
    if cfg.rank_by_program == 'on' then rank = homes() and homes().rank(lane, id, deadline, fields, rank) or rank end
    -- @guard rank: only what has no deadline ranks by the default one
    if deadline and rank == rank_of(lane, id) then rank = rank + 1 end
    return rank
  end

  -- True for an entry that was interrupted, and waits for its worker now.
  local function is_held(lane, id)
    local till = string.match(interruptions(lane, id), ' (%d+) %S+$')
    return till and tonumber(till) > now_ms()
  end

  -- Entries become ready. A row: stream id, member of the ready set, fields, bytes, deadline, given id, tenant, session. Their
  -- time of enqueueing must be kept by now. `back`: they wait again. Returns how many did not wait before.
  function HOOKS.became_ready(lane, rows, back)
    if not queue_told then look_at_queue() end
    local add, n, more, shared = {'ZADD', ready_key(lane)}, 2, 0, ordering() and order().shares(lane)
    local names = {nil}   -- of tenants; what is known of them is read at once
    for i = 1, #rows do
      if rows[i][7] and #rows[i][7] <= cfg.name_chars then names[#names + 1] = rows[i][7] end
    end
    local t = names[2] and tenants()
    if t then
      t.begin()
      t.fetch_records(names)
      t.load_turns(lane, names)
    end
    for i = 1, #rows do
      local id, member, fields, bytes, deadline, _, tenant, session = unpack(rows[i], 1, 8)
      local rank, home, held, placed = rank_now(lane, id, deadline, fields), nil, nil, false
      if back then held = is_held(lane, id) end
      if not held and (session or some_sessions == HOMING or bytes >= BEGINNING_BYTES) and homes() then home = homes().find(lane, fields) end
      if (tenant or home or held or shared or back and ordering()) and order() then
        if back and HOOKS.waits(lane, id, fields) then
          placed = true
        else
          placed = order().place(lane, id, rank, fields, deadline, tenant, home, held, not back, n > 2)
          if placed then more = more + 1 end
          shared = shared or order().shares(lane)
        end
      end
      if not placed then add[n + 1], add[n + 2], n = rank, member, n + 2 end
    end
    return more + (n > 2 and call(unpack(add)) or 0)
  end

  -- One entry becomes ready again. Returns its size, and 1 unless it waited before.
  function make_ready(lane, id, fields)
    keep_enqueued_ms(lane, id)
    local bytes, deadline, given, tenant, _, session = skim_entry(lane, id, fields)
    return bytes, HOOKS.became_ready(lane, {{id, encode_id(id), fields, bytes, deadline, given, tenant, session}}, true)
  end

  -- The rank of an entry that waits, as text; nothing for one that does not. Without `fields`, some with a label are not found.
  function HOOKS.waits(lane, id, fields)
    return ordering() and (order().find(lane, id, fields)) or call('ZSCORE', ready_key(lane), encode_id(id))
  end

  -- An entry waits no more, and no pull took it: it was cancelled, its deadline has passed, or its rank changes. Returns
  -- its rank; false if it did not wait.
  function HOOKS.left(lane, id, fields)
    if ordering() then return order().remove(lane, id, fields) end
    local rank = call('ZSCORE', ready_key(lane), encode_id(id))
    -- @guard leave: no longer ready
    if rank then call('ZREM', ready_key(lane), encode_id(id)) end
    return rank
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

  -- A worker holds so many requests less, perhaps while it waits.
  function HOOKS.freed(worker, number)
    local score = tonumber(call_if_typed('ZSCORE', WAITING, worker) or nil)
    -- @guard filling: what has ended is not held any more
    if score then call('ZADD', WAITING, score - math.min(score % NO_SLOT, number), worker) end
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
    if made_order then made_order.flush() end
    if made_tenants then made_tenants.flush() end
    if made_homes then made_homes.flush() end
  end
end
