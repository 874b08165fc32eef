-- @include entry
-- Tenants: lengths. How many tokens requests have, by tenant and class of asked limit, learnt where their results are
-- written: '<number> <mean output> <prompt tokens for each byte of body> <counts by half octave of output…>'.
local function add_lengths(t)
  local USUAL_OUTPUT, USUAL_RATE, MOST_SAMPLES, sketches = 256, 0.25, 256, nil
  table.insert(t.begins, function() sketches = {} end)

  local function half_octave(tokens) return math.floor(2 * math.log(tokens + 1) / math.log(2)) end

  -- Bytes of the body, and the limit of output that it asks for, as text, '' for none. A name inside a string of the body
  -- has escaped quotes. Of a long body only both ends are read.
  function t.size(fields)
    local body = ''
    for i = 1, #fields, 2 do if fields[i] == 'body' then body = fields[i + 1] end end
    local part = #body <= 65536 and body or string.sub(body, 1, 8192) .. '\n' .. string.sub(body, -8192)
    local at = string.find(part, '"max_', 1, true)   -- much faster than a pattern
    while at do
      local limit = string.match(part, '^[%a_]*tokens"%s*:%s*(%d%d?%d?%d?%d?%d?%d?)', at + 1)
      if limit then return #body, limit end
      at = string.find(part, '"max_', at + 1, true)
    end
    return #body, ''
  end

  local classes   -- of limits
  table.insert(t.begins, function() classes = {} end)
  local function class_of(limit)
    if not limit then return 'none' end
    if not classes[limit] then
      classes[limit] = tostring(half_octave(limit))
    end
    return classes[limit]
  end

  -- Reads the sketches of requests {tenant, limit or nil}.
  function t.load_lengths(requests)
    local fields, known = {}, {}
    for _, request in ipairs(requests) do
      local field = 'l|' .. class_of(request[2]) .. '|' .. request[1]
      if not sketches[field] and not known[field] then fields[#fields + 1], known[field] = field, true end
    end
    for i, words in ipairs(#fields > 0 and call('HMGET', SERVED, unpack(fields)) or {}) do
      local n, mean, rate = string.match(words or '', '^(%S+) (%S+) (%S+)')
      sketches[fields[i]] = {n = tonumber(n) or 0, mean = tonumber(mean) or 0, rate = tonumber(rate) or 0}
    end
  end

  -- Returns tokens that a request is likely to use, its prompt's part, and its class.
  function t.cost(name, bytes, limit)
    local class = class_of(limit)
    local field = 'l|' .. class .. '|' .. name
    if not sketches[field] then t.load_lengths({{name, limit}}) end
    local known = sketches[field]
    local output = math.min(limit or math.huge, known.n > 0 and known.mean or USUAL_OUTPUT)
    local prompt = math.floor((bytes or 0) * (known.n > 0 and known.rate or USUAL_RATE) + 0.5)
    return math.max(1, prompt + math.floor(output + 0.5)), prompt, class .. ':' .. (bytes or 0)
  end

  -- Tokens of a prompt and of an output, of the `usage` of a result; nil if nobody counted.
  function t.used(usage)
    local function named(name) return tonumber(string.match(usage or '', '"' .. name .. '_tokens"%s*:%s*(%d+)') or nil) end
    return named('prompt') or named('input'), named('completion') or named('output') or 0
  end

  function t.learn(charge, prompt, output)
    local class, bytes = string.match(charge.class, '^(.*):(%d+)$')
    local key = 'l|' .. class .. '|' .. charge.name
    local number = string.gmatch(call('HGET', SERVED, key) or '', '%S+')
    local known = {n = tonumber(number() or 0), mean = tonumber(number() or 0), rate = tonumber(number() or 0), counts = {}}
    for count in number do known.counts[#known.counts + 1] = tonumber(count) end
    known.n = math.min((known.n or 0) + 1, MOST_SAMPLES)
    local part = 1 / math.min(known.n, 32)
    known.mean = known.mean + part * (output - known.mean)
    known.rate = known.rate + part * (prompt / math.max(1, tonumber(bytes)) - known.rate)
    local total, place = 0, half_octave(output) + 1
    for i = 1, math.max(place, #known.counts) do
      known.counts[i] = (known.counts[i] or 0) + (i == place and 1 or 0)
      total = total + known.counts[i]
    end
    if total > MOST_SAMPLES then   -- old ones fade
      for i, count in ipairs(known.counts) do known.counts[i] = math.floor(count / 2) end
    end
    call('HSET', SERVED, key, string.format('%.0f %.6g %.6g ', known.n, known.mean, known.rate)
      .. table.concat(known.counts, ' '))
  end
end
