-- @include result
-- Requests with `bounded`, those that come from an API key, leave no more than `tenant_result_bytes` of their tenant in
-- Redis: those that ended first go first, but never the newest. They live on for a minute, those above 64 KiB for ten
-- seconds: somebody may be about to read them, and gateways look twice a minute for what they have to charge.
-- The list `ended:<tenant>` has '<bytes of all up to this one> <its bytes> <id>' of each.
-- `values`: field-value pairs, n in number, of the whole result.
return function(request_id, values, n)
  local tenant = ''
  for i = 1, n, 2 do
    if values[i] == 'tenant' then tenant = values[i + 1] end
  end
  if tenant == '' then return end
  -- No less than MEMORY USAGE of any server says: first its record, its keys and its place in this list.
  local key, bytes = cfg.prefix .. 'ended:' .. tenant, 440 + 4 * string.len(result_key(request_id))
  local last = redis.pcall('LINDEX', key, -1)
  -- @guard bounded: a list that was overwritten by hand is begun anew
  if type(last) == 'table' then redis.pcall('PEXPIRE', key, 0) end
  for i = 1, n do
    local size, step = string.len(values[i]) + 8, 1
    -- @guard bounded: with what a server rounds up
    if size > 128 then step = 2 ^ (select(2, math.frexp(size)) - 3) end   -- jemalloc: four sizes up to the double
    bytes = bytes + math.ceil(size / step) * step + 28
  end
  local tokens = redis.pcall('MEMORY', 'USAGE', tokens_key(request_id), 'SAMPLES', 0)
  local before = tonumber(type(last) == 'string' and string.match(last, '^%d+') or 0)
  local total = before + bytes + (tonumber(tokens) or 0)
  redis.pcall('RPUSH', key, string.format('%.0f %.0f %s', total, total - before, request_id))
  -- @guard bounded: the list goes with its results
  if before == 0 or math.floor(before / 32768) ~= math.floor(total / 32768) then
    redis.pcall('PEXPIRE', key, 2 * cfg.result_ttl_ms)
  end
  if total <= cfg.tenant_result_bytes then return end
  for _ = 1, 2000 do   -- more: with the next one
    local first = redis.pcall('LINDEX', key, 0)
    local upto, own, id = string.match(type(first) == 'string' and first or '', '^(%d+) (%d+) (.+)$')
    if id and (total - upto + own <= cfg.tenant_result_bytes or total <= tonumber(upto)) then return end
    if type(redis.pcall('LPOP', key)) ~= 'string' then return end
    local grace_ms = math.min(id and tonumber(own) > 65536 and 10000 or 60000, cfg.result_ttl_ms)
    -- @guard bounded: what ended first goes
    if id and redis.pcall('PEXPIRE', result_key(id), grace_ms) == 1 then
      -- @guard bounded: an id goes with its result
      redis.pcall('PEXPIRE', record_key(id), grace_ms)
      -- @guard bounded: tokens go with their result
      redis.pcall('PEXPIRE', tokens_key(id), grace_ms)
    end
  end
end
