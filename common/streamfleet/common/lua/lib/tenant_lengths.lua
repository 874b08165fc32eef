-- @include asked
-- Tenants: lengths. How many tokens requests have, by tenant and class of asked limit, learnt where their results are
-- written: for each class ';<class> <number> <mean output> <prompt tokens for each byte of body>'.
local function add_lengths(t)
  local USUAL_OUTPUT, USUAL_RATE, MOST_SAMPLES = 256, 0.25, 32

  t.size = asked

  local classes, sketches   -- by limit; by tenant, then class
  table.insert(t.begins, function() classes, sketches = {}, {} end)
  local function class_of(limit)
    if not limit then return 'none' end
    if not classes[limit] then classes[limit] = tostring(half_octave(limit)) end
    return classes[limit]
  end

  local function sketch_of(name, class)
    local mine = sketches[name] or {}
    sketches[name] = mine
    if not mine[class] then
      local n, mean, rate = string.match(t.get('l|' .. name) or '', ';' .. class .. ' ([^ ;]+) ([^ ;]+) ([^ ;]+)')
      mine[class] = {n = tonumber(n) or 0, mean = tonumber(mean) or 0, rate = tonumber(rate) or 0}
    end
    return mine[class]
  end

  -- Returns tokens that a request is likely to use, its prompt's part, and its class.
  function t.cost(name, bytes, limit)
    local class = class_of(limit)
    local known = sketch_of(name, class)
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
    local known = sketch_of(charge.name, class)
    known.n = math.min(known.n + 1, MOST_SAMPLES)
    known.mean = known.mean + (output - known.mean) / known.n
    known.rate = known.rate + (prompt / math.max(1, tonumber(bytes)) - known.rate) / known.n
    local others = string.gsub(t.get('l|' .. charge.name) or '', ';' .. class .. ' [^;]*', '')
    t.put('l|' .. charge.name, string.format('%s;%s %.0f %.6g %.6g', others, class, known.n, known.mean, known.rate))
  end
end
