-- @include keys
-- Adds the signature of a result: worker, attempt and entry. The script itself writes them, because later calls decide
-- by them.
-- Writes behind the first n of `values`, and returns their new number.
local function sign(values, n, worker, lane, id, attempt)
  values[n + 1], values[n + 2], values[n + 3], values[n + 4] = 'worker', worker, 'attempt', attempt
  values[n + 5], values[n + 6], values[n + 7], values[n + 8] = 'entry', entry_name(lane, id), 'lane', LANE_NAMES[lane]
  return n + 8
end

local function published_before(worker, lane, id, attempt, request_id)
  local result = call_if_typed('HMGET', result_key(request_id), 'worker', 'attempt', 'entry') or {}
  return result[1] == worker and tonumber(result[2]) == attempt and result[3] == entry_name(lane, id)
end
