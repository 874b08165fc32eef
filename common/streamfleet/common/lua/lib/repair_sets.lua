-- @include repair_common
-- Second part of a repair: members of the sets of what waits, of the delayed ones, tickets, attempts, and what is interrupted.
-- @policy order order_repair
local labels = make_order_repair()

-- A member of a set of what waits, or of the delayed ones. `remove` takes it out if a worker holds its entry, or none was given
-- it yet; of two, the delayed one stays. Returns its fields if it may stay.
local function look_at_member(kind, key, member, lane, id, remove)
  -- @guard repair: listed, and gone since
  if not call('ZSCORE', key, member) then return end
  if not id then
    note(kind .. '_odd', member)
    -- @guard repair: odd members go
    if mend then remove() end
    return
  end
  local fields = fetch_counted(lane, id)
  if not fields then
    note(kind .. '_gone', entry_name(lane, id))
    if not mend then return end
    remove()
    -- @guard repair: deleted ones that wait go
    erase(lane, id)
    return
  end
  local row = pending_row(lane, id)
  if not row and delivered(lane, id) and (key == DELAYED or not is_delayed(lane, id)) then return fields end
  note(kind .. '_twice', entry_name(lane, id))
  if not mend then return end
  if not (row and row[2] == NOBODY) then return remove() end
  call('XACK', lane_key(lane), GROUP, id)
  return fields
end

-- A member of a ready set, or of the set of a label whose key ends with `suffix`.
local function look_at_ready(lane, member, suffix)
  local key, encoded = ready_key(lane) .. suffix, string.match(member, '^%S+') or ''
  local id = decode_id(encoded)
  local function remove()
    if labels then labels.take_out(lane, suffix, member) else call('ZREM', key, member) end
  end
  local fields = look_at_member('ready', key, member, lane, id and encode_id(id) == encoded and id or nil, remove)
  if labels and fields then labels.look_at_place(lane, suffix, member, id, fields) end
end

local function look_at_delayed(_, member)
  local lane, id = lane_and_id(member)
  look_at_member('delayed', DELAYED, member, lane, id, function() call('ZREM', DELAYED, member) end)
end

local function look_at_ticket(_, field)
  local lane, id = lane_and_id(field)
  -- @guard repair: tickets of what waits for a home stay
  if lane and labels.waits_for_home(lane, id) then return end
  note('ticket_gone', field)
  -- @guard repair: tickets of what waits for no home go
  if mend then call('HDEL', KEYS[SHARED - 4], field) end
end

-- The number of interrupted requests, and the bytes of the output that they have.
local function look_at_interrupted()
  if call('HLEN', ENTRIES) > 100000 then return end   -- so many were ahead of the clock
  local flat, number, kept = call('HGETALL', ENTRIES), 0, 0
  for i = 1, #flat, 2 do
    if string.find(flat[i], '^interrupted:') then
      number, kept = number + 1, kept + (tonumber(string.match(flat[i + 1], '^%d+ %S+ (%d+)') or nil) or 0)
    end
  end
  local said, said_bytes = call('HGET', LANES, 'interrupted'), call('HGET', ENTRIES, 'kept_bytes')
  if (tonumber(said or nil) or 0) == number and (tonumber(said_bytes or nil) or 0) == kept then return end
  note('interrupted_off', '')
  if not mend then return end
  -- @guard repair: interrupted ones are counted
  if number > 0 then call('HSET', LANES, 'interrupted', number) else call('HDEL', LANES, 'interrupted') end
  -- @guard repair: the bytes of what is kept are counted
  call('HSET', ENTRIES, 'kept_bytes', string.format('%.0f', kept))
end

local function look_at_attempts(_, field)
  local lane, id = lane_and_id(field)
  -- @guard repair: attempts of what is there stay
  if lane and fetch_counted(lane, id) then return end
  note('tries_gone', field)
  -- @guard repair: attempts of what is gone go
  if mend then call('HDEL', ATTEMPTS, field) end
end
