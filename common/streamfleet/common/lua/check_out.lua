-- @include keys
-- Forget workers that left or died: their description, and their consumers where nothing is pending (deleting a
-- consumer discards its pending rows, so those wait for the reclaim).
-- KEYS: shared. ARGV: 1 configuration; 2 worker that leaves, or '' ; 3 silence after which others count as dead (ms).
-- Returns how many were forgotten.
local gone = {}
if ARGV[2] ~= '' then gone[1] = ARGV[2] end
local flat, limit = call('HGETALL', WORKERS), now_ms() - tonumber(ARGV[3])
for i = 1, #flat, 2 do
  local known, description = pcall(cjson.decode, flat[i + 1])
  local seen = known and type(description) == 'table' and tonumber(description.seen_ms) or 0
  if seen < limit and flat[i] ~= ARGV[2] then gone[#gone + 1] = flat[i] end
end

local function holds_nothing(worker)
  for lane = 1, LANE_COUNT do
    if call('XPENDING', lane_key(lane), GROUP, '-', '+', 1, worker)[1] then return false end
  end
  return true
end

local forgotten = 0
for _, worker in ipairs(gone) do
  if holds_nothing(worker) then
    for lane = 1, LANE_COUNT do call('XGROUP', 'DELCONSUMER', lane_key(lane), GROUP, worker) end
    call('HDEL', WORKERS, worker)
    call('ZREM', WATCH, worker)
    forgotten = forgotten + 1
  end
end
return forgotten
