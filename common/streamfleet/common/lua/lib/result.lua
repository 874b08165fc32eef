-- @include entry
-- @include tables
-- @include reused
-- Results of requests: every field of `{q}:result:<id>` is written here. docs/protocol.md has their names and meanings.
local HTTP_STATUS = {failed = 400, expired = 504, cancelled = 499, dead = 500}

local function openai_error(message, kind, param, code)
  return cjson.encode({error = {message = message, type = kind, param = param or cjson.null, code = code}})
end

local function deadline_error(where)
  return openai_error('the deadline passed ' .. where, 'timeout', 'deadline', 'deadline_exceeded')
end

local describe, tell_reply, notify, publish_pairs, publish, add_to_result, end_untold_tokens
do
  local told = {}

  local function tokens_key(request_id) return cfg.prefix .. 'tokens:' .. request_id end
  local function notified_field(reply) return 'notified:' .. reply end

  -- The fields of a result as field-value pairs, and the number of names and values. `given`: by name; false for none.
  local function pairs_of(given)
    local values, n = {}, 0
    for name, value in pairs(given) do
      if value then values[n + 1], values[n + 2], n = name, value, n + 2 end
    end
    return values, n
  end

  -- Adds to `given` what every result says of its entry, and returns it.
  function describe(given, lane, id, entry)
    given.lane, given.entry = LANE_NAMES[lane], entry_name(lane, id)
    given.enqueued_ms = string.format('%.0f', entry.enqueued)
    for name in string.gmatch(TABLES.carried, '%S+') do
      given[name] = entry.named[name] and string.sub(entry.named[name], 1, cfg.meta_bytes)
    end
    return given
  end

  -- A result of up to 4 KiB goes with its notification, which spares its reader a call; but not behind 200 others, because
  -- a reply stream that nobody reads must stay small. `values`, n in number, end with the status; nil if none is to go along.
  -- A stream lives as long as a result from its first entry on: no result stays in it for longer than it is kept.
  function tell_reply(reply, request_id, status, values, n)
    local key = cfg.prefix .. 'reply:' .. reply
    local room, length, bytes = told[key], nil, 0
    if not room then
      length = call_if_typed('XLEN', key) or 0
      room = 200 - length
    end
    for i = 2, values and n or 0, 2 do bytes = bytes + string.len(values[i]) end
    if values and room > 0 and bytes <= 4096 then
      values[n + 1], values[n + 2] = 'id', request_id   -- the last of a name counts
      tell(key, 'MAXLEN', '~', cfg.reply_cap, '*', unpack(values, 1, n + 2))
    else
      tell(key, 'MAXLEN', '~', cfg.reply_cap, '*', 'id', request_id, 'status', status)
    end
    if length == 0 then call('PEXPIRE', key, cfg.result_ttl_ms) end
    told[key] = room - 1
  end

  -- Notify each name once, even if several entries of the id name it; the result remembers the notified names.
  function notify(reply, request_id, status)
    if not reply or call('HMGET', result_key(request_id), notified_field(reply))[1] == '1' then return end
    tell_reply(reply, request_id, status)
    call('HSET', result_key(request_id), notified_field(reply), '1')   -- last: a notification refused above is sent later
  end

  -- Writes the last entry of a streamed request's tokens, in one step with its result; `words`: more fields of it. A
  -- refusal does not delay the end: readers also look at the result.
  local function end_tokens(request_id, status, words)
    local key = tokens_key(request_id)
    local added = redis.pcall('XADD', key, '*', 'end', status, unpack(words))
    -- @guard tokens: they expire
    if type(added) == 'string' then redis.pcall('PEXPIRE', key, cfg.result_ttl_ms) end
  end

-- @policy bounded
  -- A result is written: `values`, field-value pairs, n in number.
  local function bound_results(request_id, values, n)
    for i = 1, n, 2 do
      local bound = values[i] == 'bounded' and values[i + 1] == '1' and make_bounded()
      if bound then bound(request_id) end
    end
  end

  -- The only place that writes a terminal status. Returns false if another writer was first, and nothing was written.
  -- The caller has seen that the id is not another request's. `values`: field-value pairs, n in number. `tokens`: fields,
  -- beside the status, of the last entry of a streamed request's tokens. `new`: the caller has seen that there is no result.
  -- `life`: expiry of the result, ms; nil for the usual one.
  function publish_pairs(request_id, status, values, n, reply, tokens, new, life)
    local key = result_key(request_id)
    local first = new or call_if_typed('HSETNX', key, 'status', status)
    if not first then   -- written by hand: not a result
      call('PEXPIRE', key, 0)   -- workers may lack the right to DEL
      first = call('HSETNX', key, 'status', status)
    end
    if first == 0 then return false end
    local mark = reply and notified_field(reply)   -- a new result: no name has been notified yet
    local all = mark and n + 4 or n + 2
    values[n + 1], values[n + 2], values[n + 3], values[n + 4] = 'status', status, mark, mark and '1'
    call('HSET', key, unpack(values, 1, all))
    -- @guard publish: results expire
    call('PEXPIRE', key, life or cfg.result_ttl_ms)
    if tokens then end_tokens(request_id, status, tokens) end
    -- @guard bounded: by its tenant
    bound_results(request_id, values, all)
    if mark then
      -- More may be added to the result of a cancelled request.
      local ok, refusal = pcall(tell_reply, reply, request_id, status, status ~= 'cancelled' and values or nil, n + 2)
      if not ok then
        -- @guard publish: a refused notification is not remembered as told
        call('HSET', key, mark, '0')   -- what was refused is told later
        error(refusal)
      end
    end
    return true
  end

  -- The same for a request that no worker ends: `given` has the result's fields by name.
  function publish(request_id, status, given, reply, tokens, life)
    given.http_status, given.finished_ms = HTTP_STATUS[status], string.format('%.0f', now_ms())
    local values, n = pairs_of(given)
    return publish_pairs(request_id, status, values, n, reply, tokens, nil, life)
  end

  -- Adds fields to the result of a request that was cancelled before its entry was found: it lives as long as any now.
  function add_to_result(request_id, given)
    local values, n = pairs_of(given)
    -- @guard discard duplicate: a cancel is counted with its entry
    call('HSET', result_key(request_id), unpack(values))
    call('PEXPIRE', result_key(request_id), cfg.result_ttl_ms)
    -- @guard bounded: cancelled ones too
    bound_results(request_id, values, n)
  end

  -- Ends the tokens of a request whose result was written without knowing that there are readers.
  function end_untold_tokens(request_id, status)
    -- @guard tokens: made up for once
    call('HSET', result_key(request_id), 'streamed', '0')
    end_tokens(request_id, status, {})
  end
end
