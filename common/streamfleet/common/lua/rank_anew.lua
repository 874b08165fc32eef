-- @include come_back
-- Rank anew what was staged before Redis's clock was set back. Each call examines a part of each lane, and the next one
-- continues behind it, until all are examined.
-- KEYS: shared; the hash `clock`. ARGV: 1 configuration. Returns nothing.
local CLOCK, LOOKED_AT = KEYS[SHARED + 1], 100
require_types()
open_for_writes()

-- An entry staged before the clock was set back has a rank that the clock may take long to reach. Such entries have ids
-- ahead of the clock.
local function rank_anew(lane)
  local field, looked, bytes = 'ranks:' .. LANE_NAMES[lane], 0, 0
  local staged, last = given_id(call('HGET', LANES, 'staged:' .. LANE_NAMES[lane])), given_id(call('HGET', CLOCK, field))
  local seen = staged and encode_id(staged)
  local from = string.format('%.0f-0', now_ms() + 1)
  if last and encode_id(last) > encode_id(from) then from = last end
  while seen and encode_id(from) < seen and looked < LOOKED_AT and bytes < cfg.copied_bytes do
    local item = call('XRANGE', lane_key(lane), '(' .. from, '+', 'COUNT', 1)[1]
    if not item or encode_id(item[1]) > seen then break end
    from, looked = item[1], looked + 1
    bytes = bytes + skim_entry(lane, from, item[2])
    if not kept_enqueued_ms(lane, from) then
      local was_ready = HOOKS.left(lane, from, item[2])
      keep_enqueued_ms(lane, from)
      if was_ready then make_ready(lane, from, item[2]) end
    end
  end
  if looked == LOOKED_AT or bytes >= cfg.copied_bytes then
    call('HSET', CLOCK, field, from)
  elseif last then
    call('HDEL', CLOCK, field)
  end
end

-- @guard rank_anew: what was staged ahead of a clock that was set back is ranked anew
for lane = 1, LANE_COUNT do rank_anew(lane) end
write_counts()
