-- @include ids
-- @include queue
-- When an entry was enqueued. An id whose time was ahead of the clock when its entry was staged tells no time: it was made by
-- hand, or the clock was set back. ENTRIES keeps the time at which such an entry was staged until it ends, and LANES the
-- last of them in each lane, so that ENTRIES is rarely asked.
local function may_be_ahead(lane, id)
  local last = given_id(look_at_queue()[3 + lane])
  return last and encode_id(id) <= encode_id(last)
end

local function ahead_field(lane, id) return 'enqueued:' .. entry_field(lane, id) end

-- Nil for an entry whose id tells when it was enqueued.
local function kept_enqueued_ms(lane, id)
  return may_be_ahead(lane, id) and tonumber(call_if_typed('HGET', ENTRIES, ahead_field(lane, id)) or '') or nil
end

local function enqueued_ms(lane, id) return kept_enqueued_ms(lane, id) or math.min(id_ms(id), now_ms()) end

-- Call it before an entry is made ready: the time behind its deadline and its rank must not change any more.
local function keep_enqueued_ms(lane, id)
  if id_ms(id) <= now_ms() or kept_enqueued_ms(lane, id) then return end
  call_if_typed('HSET', ENTRIES, ahead_field(lane, id), string.format('%.0f', now_ms()))
  if may_be_ahead(lane, id) then return end
  queue_told[3 + lane] = id
  call('HSET', LANES, 'ahead:' .. LANE_NAMES[lane], id)
end
