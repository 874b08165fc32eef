-- @include tenant_turns
-- @include usual_tokens
-- Tenants: lengths. How many tokens requests have, by tenant and class of asked limit, learnt where their results are
-- written: for each class ';<class> <number> <mean output> <prompt tokens for each byte of body>', and ' x' once a run with such
-- a limit had more output than its limit.
local MOST_SAMPLES = 32

local function class_of(limit) return limit and tostring(half_octave(limit)) or 'none' end

-- Number of samples, mean output, prompt tokens for each byte of body, and ' x' or '', of a class; 0 if none is known.
local function sketch_of(record, class)
  local _, at = string.find(record.lengths, ';' .. class .. ' ', 1, true)
  if not at then return 0, 0, 0, '' end
  local n, mean, rate, beyond = string.match(record.lengths, '^([^ ;]+) ([^ ;]+) ([^ ;]+)( ?x?)', at + 1)
  return tonumber(n) or 0, tonumber(mean) or 0, tonumber(rate) or 0, beyond
end

-- Returns tokens that a request of a tenant with this record is likely to use, and its prompt's part.
function t.cost(record, bytes, limit)
  local n, mean, rate, beyond = 0, USUAL_OUTPUT, USUAL_RATE, ''
  if record.lengths ~= '' then n, mean, rate, beyond = sketch_of(record, class_of(limit)) end
  if n == 0 then mean, rate = USUAL_OUTPUT, USUAL_RATE end
  local prompt = math.floor((bytes or 0) * rate + 0.5)
  -- @guard lengths: a limit that runs have exceeded bounds nothing
  if limit and limit < mean and beyond ~= ' x' then mean = limit end
  return math.max(1, prompt + math.floor(mean + 0.5)), prompt
end

-- Tokens that a request without a tenant is charged until its body is read.
function t.usual() return tonumber(t.get('usual') or nil) or USUAL_OUTPUT end

-- Tokens of a prompt and of an output, of the `usage` of a result; nil if nobody counted.
local function used(usage)
  local function tokens(name)
    local _, at = string.find(usage or '', name, 1, true)   -- much faster than a pattern
    return at and tonumber(string.match(usage, '^%s*:%s*(%d+)', at + 1) or nil)
  end
  return tokens('"prompt_tokens"') or tokens('"input_tokens"'), tokens('"completion_tokens"') or tokens('"output_tokens"') or 0
end

local function learn(charge, prompt, output)
  local record, class = t.record(charge.name), class_of(charge.limit)
  local n, mean, rate, beyond = sketch_of(record, class)
  n = math.min(n + 1, MOST_SAMPLES)
  mean = mean + (output - mean) / n
  rate = rate + (prompt / math.max(1, charge.bytes) - rate) / n
  if charge.limit and output > charge.limit then beyond = ' x' end
  local others, from = record.lengths, string.find(record.lengths, ';' .. class .. ' ', 1, true)
  if from then
    others = string.sub(others, 1, from - 1) .. string.sub(others, string.find(others, ';', from + 1, true) or #others + 1)
  end
  record.lengths = string.format('%s;%s %d %.6g %.6g%s', others, class, n, mean, rate, beyond)
  t.put('l|' .. charge.name, record.lengths)
end
