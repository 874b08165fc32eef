-- @include come_back
-- @include lease
-- Restarts leases that lie ahead of the clock after it was set back. Each call examines a part of a lane, and the next one
-- continues behind it, until all are examined.
local CLOCK, LOOKED_AT = KEYS[SHARED + 1], 100

-- Restarts leases, and removes the entries that were XDELed by hand.
local function restart(lane, worker, ids)
  local _, gone = stamp(lane, worker, ids)
  for _, id in ipairs(gone) do
    -- @guard set back: staged where it was not yet
    if worker == NOBODY then count_staged(lane, id) end
    remove_entry(lane, id)
    count('vanished')
  end
end

-- A lease from before the clock was set back looks renewed until the clock has caught up: it restarts now. Only such a
-- lease has an idle time below zero, which XPENDING compares but does not return.
local function count_anew(lane)
  local field = 'leases:' .. LANE_NAMES[lane]
  local last = given_id(call('HGET', CLOCK, field))
  local rows = call('XPENDING', lane_key(lane), GROUP, last and '(' .. last or '-', '+', LOOKED_AT)
  local idle, ahead = {}, {}
  if #rows > 0 then
    for _, row in ipairs(call('XPENDING', lane_key(lane), GROUP, 'IDLE', -1000, rows[1][1], rows[#rows][1], LOOKED_AT)) do
      idle[row[1]] = true
    end
  end
  for _, row in ipairs(rows) do
    if not idle[row[1]] then
      ahead[row[2]] = ahead[row[2]] or {}
      table.insert(ahead[row[2]], row[1])
    end
  end
  for worker, ids in pairs(ahead) do restart(lane, worker, ids) end
  if #rows == LOOKED_AT then call('HSET', CLOCK, field, rows[LOOKED_AT][1]) elseif last then call('HDEL', CLOCK, field) end
end

-- Returns the longest time for which a lease can have been idle. At the last look no lease had expired; one that seems to
-- have expired before it was claimed while Redis's clock was set back for a moment, between two looks.
local function longest_idle(lease_ms)
  local looked = tonumber(call('HGET', CLOCK, 'reclaimed') or '')
  return looked and lease_ms + math.max(0, now_ms() - looked) + 1000 or math.huge
end

-- Remembers that no lease has expired by now.
local function keep_look() call('HSET', CLOCK, 'reclaimed', string.format('%.0f', now_ms())) end
