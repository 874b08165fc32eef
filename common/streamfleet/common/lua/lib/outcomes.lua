-- @include keys
-- Parses the arguments of complete.lua, as its header lists them, and signs results.

-- Returns outcomes, and the keys of their results. An outcome is a row for the fence, and the place of its arguments.
local function read_outcomes()
  local outcomes, results, at = {nil}, {nil}, 3
  while at <= #ARGV do
    local size = tonumber(ARGV[at + 9])
    outcomes[#outcomes + 1] = {tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2]), at = at, size = size}
    results[#results + 1] = KEYS[SHARED - 1 + 2 * #outcomes]
    at = at + 10 + size
  end
  return outcomes, results
end

-- Field-value pairs of a result, and the number of names and values. What comes behind them makes room for 12 more: a table
-- that grows is copied.
local function values_of(item) return {unpack(ARGV, item.at + 10, item.at + 21 + item.size)}, item.size end

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

-- Adds the signature of a worker's result behind the first n of `values`, and returns their new number. The script
-- itself writes it, because later calls decide by it; one by one, because nearly all results pass here.
local function sign(values, n, worker, lane, id, attempt)
  values[n + 1], values[n + 2], values[n + 3], values[n + 4] = 'worker', worker, 'attempt', attempt
  values[n + 5], values[n + 6], values[n + 7], values[n + 8] = 'entry', entry_name(lane, id), 'lane', LANE_NAMES[lane]
  return n + 8
end

local function published_before(worker, lane, id, attempt, request_id)
  local result = call_if_typed('HMGET', result_key(request_id), 'worker', 'attempt', 'entry') or {}
  return result[1] == worker and tonumber(result[2]) == attempt and result[3] == entry_name(lane, id)
end
