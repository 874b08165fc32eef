-- @include result
-- Requests with `bounded`, those that come from an API key, leave no more than `tenant_result_bytes` of their tenant in
-- Redis: those that ended first go first, but never the newest. They live on for a minute, those above 64 KiB for ten
-- seconds: somebody may be about to read them, and gateways look twice a minute for what they have to charge.
-- The list `ended:<tenant>` has '<bytes of all up to this one> <its bytes> <id>' of each.
return function(request_id)
  local result = result_key(request_id)
  local tenant = redis.pcall('HMGET', result, 'tenant')[1]
  if not tenant or tenant == '' then return end
  local key = cfg.prefix .. 'ended:' .. tenant
  local last = redis.pcall('LINDEX', key, -1)
  -- @guard bounded: a list that was overwritten by hand is begun anew
  if type(last) == 'table' then redis.pcall('PEXPIRE', key, 0) end
  -- Only the server knows what it takes: how far a value is rounded up depends on its allocator, and with that of glibc
  -- on what was freed before. The number is for the place in this list.
  local bytes = 80 + 2 * string.len(request_id)
  for _, each in ipairs({result, record_key(request_id), tokens_key(request_id)}) do
    bytes = bytes + (tonumber(redis.pcall('MEMORY', 'USAGE', each, 'SAMPLES', 0)) or 0)
  end
  local before = tonumber(type(last) == 'string' and string.match(last, '^%d+') or 0)
  local total = before + bytes
  redis.pcall('RPUSH', key, string.format('%.0f %.0f %s', total, bytes, request_id))
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
