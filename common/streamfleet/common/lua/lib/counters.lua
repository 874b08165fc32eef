-- @include mending
-- @include sums
-- Counters of requests, for compare.lua: brought to what is there.
local ENDINGS = {'succeeded', 'failed', 'expired', 'cancelled', 'dead', 'duplicate', 'id_reused', 'vanished'}

-- The number of interrupted requests, and the bytes of the output that they have.
local function check_interrupted()
  if call('HLEN', ENTRIES) > 5000 then return end   -- so many were ahead of the clock
  local flat, some, kept = call('HGETALL', ENTRIES), 0, 0
  for i = 1, #flat, 2 do
    if string.find(flat[i], '^interrupted:') then
      some, kept = some + 1, kept + (tonumber(string.match(flat[i + 1], '^%d+ %S+ (%d+)') or nil) or 0)
    end
  end
  local said = tonumber(call('HGET', ENTRIES, 'kept_bytes') or nil) or 0
  if (tonumber(some_interrupted or nil) or 0) == some and said == kept then return end
  note('interrupted_off', '')
  if not mend then return end
  -- @guard compare: interrupted ones are counted
  if some > 0 then call('HSET', LANES, 'interrupted', some) else call('HDEL', LANES, 'interrupted') end
  -- @guard compare: the bytes of what is kept are counted
  call('HSET', ENTRIES, 'kept_bytes', string.format('%.0f', kept))
end

local function read_counters()
  local flat, counters = call('HGETALL', COUNTS), {}
  for i = 1, #flat, 2 do
    if string.find(flat[i + 1], '^%-?%d+$') and #flat[i + 1] <= 15 then
      counters[flat[i]] = tonumber(flat[i + 1])
    else
      note('odd_count', flat[i])
      -- @guard compare: counters are numbers
      if mend then call('HDEL', COUNTS, flat[i]) end
    end
  end
  return counters
end

-- Brings the counters to what is there. Entries that disappeared unseen have vanished. The true number of entries ever is the larger
-- of what was seen, and what exists with what has ended; and from Redis 7.0 on the streams' own count.
-- `outstanding`: entries that there are; `unplaced`: those of them that no pull has staged; `certain`: that number is right.
local function balance(outstanding, unplaced, certain)
  local counters, ended, mirror = read_counters(), 0, tonumber(call('HGET', LANES, 'ever_staged') or nil) or 0
  local staged, forgotten = counters.staged or 0, counters.forgotten or 0
  local added = (ARGV[2] == 'all' or ARGV[2] == 'streams' or staged < mirror) and 0 or nil
  for _, name in ipairs(ENDINGS) do ended = ended + (counters[name] or 0) end
  for lane = 1, LANE_COUNT do
    local of_lane = added and (call('EXISTS', lane_key(lane)) == 0 and 0 or stream_info(lane, 'entries-added'))
    added = of_lane and added + of_lane
  end
  -- @guard compare: not while it does not fit
  if unplaced < 0 or not certain then return end
  local seen, known = staged + unplaced, ended + outstanding
  local truth = math.max(seen, known)
  if staged >= mirror and added then
    truth = math.max(truth, added + forgotten)
  elseif staged < mirror then   -- the counters were lost, or are older: what ended meanwhile is not counted again
    truth = known
  end
  local off = {staged = truth - seen, vanished = truth - known, forgotten = added and truth - added - forgotten or 0}
  if off.staged == 0 and off.vanished == 0 and off.forgotten == 0 then return end
  note('miscounted', string.format('staged by %.0f, vanished by %.0f, forgotten by %.0f', off.staged, off.vanished, off.forgotten))
  if not mend then return end
  for name, some in pairs(off) do if some ~= 0 then call('HINCRBY', COUNTS, name, string.format('%.0f', some)) end end
  if staged < mirror then call('HSET', LANES, 'ever_staged', string.format('%.0f', staged + off.staged)) end
  -- An entry that nobody holds yet was not counted above, so it is counted when it is staged.
  call('HDEL', LANES, lane_fields('again:,'))
end
