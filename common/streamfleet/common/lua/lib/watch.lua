-- @include wake
-- Of those that wait the emptiest watch: at most cfg.watchers, and nobody beside one with more room.

-- The end of the scores of workers that have as much room as one with this score.
local function level_end(score) return (math.floor(score / NO_SLOT) + 1) * NO_SLOT end

-- Returns how many watch that have as much room as a worker with this score, or more; the names of those that have less; and the
-- end of the scores of workers that may watch beside all of them.
local function who_watches(own)
  local number, fuller, bound = 0, {}, math.huge
  for _, name in ipairs(call('ZRANGEBYSCORE', WATCH, now_ms(), '+inf')) do
    local score = tonumber(call('ZSCORE', WAITING, name) or 0)
    bound = math.min(bound, level_end(score))
    if score >= level_end(own) then fuller[#fuller + 1] = name else number = number + 1 end
  end
  return number, fuller, bound
end

-- Gives a free watch to the first worker below the bound. With `at_once` it watches without a pull: for a short time, because
-- it may be dead. Otherwise it pulls, and that takes the watch.
local function hand_watch(bound, at_once)
  local other = rouse_first(bound, at_once and 'watch' or '1')
  -- @guard watch: one that is handed over is counted
  if other and at_once then call('ZADD', WATCH, now_ms() + 1500, other) end
end
