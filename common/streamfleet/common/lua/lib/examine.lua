-- @include mending
-- Examines entries, for reconcile.lua. Each has one place: a worker holds it, or nobody yet, it is delayed, or it waits in the sets
-- of its labels. What has no place waits from now on; what has two keeps that of the worker, or the delay.
local TICKETS, MOST_ENDED = KEYS[SHARED - 4], 100   -- ending an entry takes as long as placing ten
local woken, endings, groups, last = nil, 0, {}, {}   -- woken: the first lane in which something waits from now on
for lane = 1, LANE_COUNT do
  groups[lane] = group_of(lane)
  last[lane] = groups[lane] and named(groups[lane], 'last-delivered-id') or '0-0'
end

local function is_noted(field)
  return call('HEXISTS', ATTEMPTS, field) + call('HEXISTS', ENTRIES, 'enqueued:' .. field) + call('HEXISTS', ENTRIES, 'interrupted:' .. field) > 0
end

local function forget(lane, id, field)
  if lane then HOOKS.left(lane, id) end
  call('ZREM', DELAYED, field)
  call('HDEL', TICKETS, field)
  call('HDEL', ENTRIES, 'enqueued:' .. field)
  -- @guard reconcile: what is known of one that is gone goes
  if lane then remove_entry(lane, id) else call('HDEL', ATTEMPTS, field) end
end

-- An entry waits, from the beginning or at another place. It ends if it must not run.
local function place(lane, id, fields, waited)
  if waited then HOOKS.left(lane, id, fields) end
  local _, _, ended = come_back(lane, id, fields)
  endings = endings + ended
  if ended == 0 then woken = math.min(woken or lane, lane) end
end

-- The time of staging of an entry whose id is ahead of the clock must be known. Returns true if it was not.
local function check_ahead(lane, id)
  if id_ms(id) <= now_ms() or kept_enqueued_ms(lane, id) then return false end
  local known = call('HEXISTS', ENTRIES, 'enqueued:' .. entry_field(lane, id)) == 1
  -- @guard reconcile: it is known that ids are ahead of the clock
  if known then call('HSET', LANES, 'ahead:' .. LANE_NAMES[lane], id) else keep_enqueued_ms(lane, id) end
  return not known
end

local function place_of(lane, id, fields)
  if sets then return sets.place(lane, id, fields) end
  return HOOKS.waits(lane, id, fields), true, false
end

-- Returns true if no more entries may end in this call.
local function examine(lane, id, fields)
  local name, field = entry_name(lane, id), entry_field(lane, id)
  local row, due = groups[lane] and call('XPENDING', lane_key(lane), GROUP, id, id, 1)[1], call('ZSCORE', DELAYED, field)
  local ticket, delivered = call('HEXISTS', TICKETS, field) == 1, encode_id(id) <= encode_id(last[lane])
  if not fields then
    -- @guard reconcile: listed, and gone since
    if not (row or due or ticket or is_noted(field)) then return end
    note('gone', name)
    if mend then forget(lane, id, field) end
    return
  end
  local rank, right, ticketed = place_of(lane, id, fields)
  local ahead = mend and delivered and not (row and row[2] == NOBODY) and check_ahead(lane, id)
  if ticket and not ticketed or due and not delivered then note('odd', name) end
  -- @guard reconcile: tickets are of those that need one
  if mend and ticket and not ticketed then call('HDEL', TICKETS, field) end
  -- @guard reconcile: what runs, or is not delivered, is not delayed
  if mend and due and (row or not delivered) then call('ZREM', DELAYED, field) end
  if row and due or rank and (row or due) then
    note('twice', name)
    if mend and rank and not due and row[2] == NOBODY then
      -- @guard reconcile: what nobody holds waits on
      call('XACK', lane_key(lane), GROUP, id)
    elseif mend and rank then
      -- @guard reconcile: what runs or is delayed does not wait
      HOOKS.left(lane, id, fields)
    end
  elseif delivered and not (row or due or rank) or rank and not right then
    note(rank and 'misplaced' or 'nowhere', name)
    -- @guard reconcile: what is nowhere waits
    if mend then place(lane, id, fields, rank) end
  elseif rank and ahead then
    -- @guard reconcile: what was staged ahead of the clock is ranked anew
    place(lane, id, fields, rank)
  end
  return endings >= MOST_ENDED
end
