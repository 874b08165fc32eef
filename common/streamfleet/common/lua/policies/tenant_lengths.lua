-- @include lengths
-- Tenants: lengths. How many tokens requests have, by tenant and class of asked limit, learnt where their results are
-- written: for each class ';<class> <number> <mean output> <prompt tokens for each byte of body>'.
local function add_lengths(t)
  local USUAL_OUTPUT, USUAL_RATE, MOST_SAMPLES = 256, 0.25, 32

  t.size = body_size

  local function class_of(limit) return limit and tostring(half_octave(limit)) or 'none' end

  -- Number of samples, mean output, and prompt tokens for each byte of body, of a class; 0 if none is known.
  local function sketch_of(record, class)
    local _, at = string.find(record.lengths, ';' .. class .. ' ', 1, true)
    if not at then return 0, 0, 0 end
    local n, mean, rate = string.match(record.lengths, '^([^ ;]+) ([^ ;]+) ([^ ;]+)', at + 1)
    return tonumber(n) or 0, tonumber(mean) or 0, tonumber(rate) or 0
  end

  -- Returns tokens that a request of a tenant with this record is likely to use, its prompt's part, and its class.
  function t.cost(record, bytes, limit)
    local class = class_of(limit)
    local n, mean, rate = sketch_of(record, class)
    if n == 0 then mean, rate = USUAL_OUTPUT, USUAL_RATE end
    local prompt = math.floor((bytes or 0) * rate + 0.5)
    return math.max(1, prompt + math.floor(math.min(limit or mean, mean) + 0.5)), prompt, class .. ':' .. (bytes or 0)
  end

  -- Tokens of a prompt and of an output, of the `usage` of a result; nil if nobody counted.
  function t.used(usage)
    local function tokens(name)
      local _, at = string.find(usage or '', name, 1, true)   -- much faster than a pattern
      return at and tonumber(string.match(usage, '^%s*:%s*(%d+)', at + 1) or nil)
    end
    return tokens('"prompt_tokens"') or tokens('"input_tokens"'), tokens('"completion_tokens"') or tokens('"output_tokens"') or 0
  end

  function t.learn(charge, prompt, output)
    local class, bytes = string.match(charge.class, '^(.*):(%d+)$')
    local record = t.record(charge.name)
    local n, mean, rate = sketch_of(record, class)
    n = math.min(n + 1, MOST_SAMPLES)
    mean = mean + (output - mean) / n
    rate = rate + (prompt / math.max(1, tonumber(bytes)) - rate) / n
    local others, from = record.lengths, string.find(record.lengths, ';' .. class .. ' ', 1, true)
    if from then
      others = string.sub(others, 1, from - 1) .. string.sub(others, string.find(others, ';', from + 1, true) or #others + 1)
    end
    record.lengths = string.format('%s;%s %d %.6g %.6g', others, class, n, mean, rate)
    t.put('l|' .. charge.name, record.lengths)
  end
end
