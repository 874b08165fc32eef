-- @include keys
-- Parses the arguments of complete.lua, as its header lists them.

-- Returns outcomes, and the keys of their results. An outcome is a row for the fence, and the place of its arguments.
local function read_outcomes()
  local outcomes, results, at, names, size = {}, {}, 3, nil, 0
  while at <= #ARGV do
    local own = tonumber(ARGV[at + 7])
    if own < 0 then own = 0 else names, size = at + 7, own end
    outcomes[#outcomes + 1] = {tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2]), at = at, names = names,
      values = at + 7 + own, size = size}
    results[#results + 1] = KEYS[SHARED - 1 + 2 * #outcomes]
    at = at + 8 + own + size
  end
  return outcomes, results
end

local words, named   -- the pairs of one result; the next one with the same names reuses them
-- @begin
words, named = {}, nil
-- @end

-- Field-value pairs of a result, and the number of its values.
local function values_of(item)
  if item.names ~= named then
    words, named = {}, item.names
    for field = 1, item.size do words[2 * field - 1] = ARGV[named + field] end
  end
  for field = 1, item.size do words[2 * field] = ARGV[item.values + field] end
  return words, 2 * item.size
end

-- Fields of an outcome about its run alone, by name: its wait for the engine, its use, and what it went on with.
local ABOUT_RUN = {usage = true, waited_ms = true, resumed_tokens = true}
local function run_of(values, n)
  local run = {}
  for i = 1, n, 2 do
    if ABOUT_RUN[values[i]] then run[values[i]] = values[i + 1] end
  end
  return run
end

-- Fields, beside the status, of the last entry of an outcome's tokens; nil if it is not streamed.
local function tokens_of(values, n, attempt)
  for i = 1, n, 2 do
    if values[i] == 'streamed' then return {'attempt', tostring(attempt), 'chunks', values[i + 1]} end
  end
end
