-- @include info
-- Set the counters right after everything else has been repaired: entries that disappeared unseen are counted as
-- vanished. The true number of entries ever is the largest of three: the counters; what exists plus what has ended; and
-- from Redis 7.0 on the streams' own count.
-- KEYS: shared. ARGV: 1 configuration.
-- Returns {entries never counted as staged, entries that vanished, error of the streams' own count}; all 0 when the
--   counters are right. Empty if there are more ready, delayed and pending entries than entries in all.
local NAMES = {'succeeded', 'failed', 'expired', 'cancelled', 'dead', 'duplicate', 'id_reused', 'vanished'}

local function counter(name) return tonumber(call('HGET', COUNTS, name) or 0) or 0 end

local function pending_of(lane)
  local count = 0
  for _, row in ipairs(call('XPENDING', lane_key(lane), GROUP)[4] or {}) do
    if row[1] ~= NOBODY then count = count + tonumber(row[2]) end
  end
  return count
end

local outstanding, staged_now, added, waiting = 0, call('ZCARD', DELAYED), 0, lane_lengths()
for lane = 1, LANE_COUNT do
  outstanding = outstanding + call('XLEN', lane_key(lane))
  staged_now = staged_now + waiting[lane] + pending_of(lane)
  local of_lane = named(call('XINFO', 'STREAM', lane_key(lane)), 'entries-added')
  added = added and of_lane and added + of_lane or nil
end
-- @guard balance: not while it does not fit
if staged_now > outstanding then return {} end

local staged, mirror = counter('staged'), tonumber(call('HGET', LANES, 'ever_staged') or 0)
local seen, ended = staged + outstanding - staged_now, 0
for _, name in ipairs(NAMES) do ended = ended + counter(name) end
local known = ended + outstanding
local truth = math.max(seen, known)
-- Fewer than LANES has seen staged: the counters were deleted, and requests that ended before are not counted again.
if added and staged >= mirror then truth = math.max(truth, added + counter('forgotten')) end
local off = {truth - seen, truth - known, added and truth - added - counter('forgotten') or 0}
open_for_writes()
-- An entry that nobody holds yet was not counted above, so it is counted when it is staged.
call('HDEL', LANES, lane_fields('again:,'))
for i, name in ipairs({'staged', 'vanished', 'forgotten'}) do
  if off[i] ~= 0 then call('HINCRBY', COUNTS, name, string.format('%.0f', off[i])) end
end
if staged < mirror then call('HSET', LANES, 'ever_staged', string.format('%.0f', staged + off[1])) end
return off
