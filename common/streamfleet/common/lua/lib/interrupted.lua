-- @include queue
-- ENTRIES has a record for each request whose run was interrupted, until its entry ends: '<how often it gave way> <run>
-- <bytes> <until> <worker>'. <run> and <bytes> tell of output that was kept. <until> and <worker> are there if it gave way:
-- until that time, epoch ms, it waits for this worker, which has it in its cache. LANES has the number of such entries,
-- so that it is rarely asked for one of them, and the bytes of all.
local function interrupted_field(lane, id) return 'interrupted:' .. entry_field(lane, id) end

local function interruptions(lane, id)
  look_at_queue()
  return some_interrupted and call_if_typed('HGET', ENTRIES, interrupted_field(lane, id)) or ''
end

-- Output that is kept has a key for each run, and counts while the record of its request names the run.
local function kept_key(run) return cfg.prefix .. 'kept:' .. run end

-- The record of a request is about to change from `before` to `after`; '' for none. Deletes the output that `before` names if
-- `after` names another one, and keeps the sum of bytes.
local function change_kept(before, after)
  local old, old_bytes = string.match(before, '^%d+ (%S+) (%d+)')
  local new, new_bytes = string.match(after, '^%d+ (%S+) (%d+)')
  -- @guard kept: what counts no more is deleted
  if old and old ~= new then redis.pcall('DEL', kept_key(old)) end
  local more = (tonumber(new_bytes) or 0) - (tonumber(old_bytes) or 0)
  -- @guard interrupted: the bytes of what is kept are known
  if more ~= 0 then call_if_typed('HINCRBY', ENTRIES, 'kept_bytes', string.format('%.0f', more)) end
end

local function forget_interruptions(lane, ids)
  look_at_queue()
  if not some_interrupted then return end
  local fields = {}
  for i, id in ipairs(ids) do
    fields[i] = interrupted_field(lane, id)
    change_kept(interruptions(lane, id), '')
  end
  local gone = call_if_typed('HDEL', ENTRIES, unpack(fields)) or 0
  -- @guard interrupted: their number is kept
  if gone > 0 and call('HINCRBY', LANES, 'interrupted', -gone) <= 0 then call('HDEL', LANES, 'interrupted') end
end
