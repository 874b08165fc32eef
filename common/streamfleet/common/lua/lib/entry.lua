-- @include keys
-- Parses an entry's fields, as far as ordering and finishing need them. Never raises, whatever was XADDed.
local NO_DEADLINE = 9e15

-- Stream ids as sorted-set members whose byte order is id order: equal ranks stay first in, first out. Returns the
-- member, and the id's time.
local function member_and_ms(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return string.char(64 + #ms) .. ms .. '-' .. string.char(64 + #seq) .. seq, tonumber(ms)
end

local function encode_id(id) return (member_and_ms(id)) end

-- Nil for an id that was written by hand and that a command would refuse halfway through: each part has 64 bits.
local function sound_id(ms, seq)
  if not ms then return nil end
  if #ms < 20 and #seq < 20 then return ms .. '-' .. seq end   -- nearly all
  for _, part in ipairs({ms, seq}) do
    if #part > 20 or #part == 20 and part > '18446744073709551615' then return nil end
  end
  return ms .. '-' .. seq
end

local function decode_id(member) return sound_id(string.match(member, '^%u(%d+)%-%u(%d+)$')) end

-- Lane and stream id of a field that entry_field made; nil for any other field.
local function lane_and_id(field)
  local lane, ms, seq = string.match(field, '^([1-9])|(%d+)%-(%d+)$')
  local id = sound_id(ms, seq)
  if id and LANE_NAMES[tonumber(lane)] then return tonumber(lane), id end
end

local function milliseconds(text)   -- digits only: tonumber alone would take nan, inf, 0x10 and 1e9
  if text and #text <= 16 and string.find(text, '^%d+$') then return math.min(tonumber(text), NO_DEADLINE) end
end

local function usable_name(text)    -- the rule of check_name in protocol.py
  if not text or #text <= cfg.name_chars and string.find(text, '^[%w_%-]+$') then return text end   -- nearly all: hex, UUIDs
  if #text >= 1 and #text <= cfg.name_chars and not string.find(text, '[^\33-\126]')
      and not string.find(text, '^%a+:%d+%-%d+$') then
    return text
  end
end

-- An id whose time was ahead of the clock when its entry was staged tells no time: it was made by hand, or the clock
-- was set back. SCHED keeps the time at which such an entry was staged until it ends, and the last of them in each
-- lane, so that SCHED is rarely asked. `sched`: what it said, as look_at_sched returns it.
local sched, some_interrupted, some_tenants, some_sessions
-- @begin
sched, some_interrupted, some_tenants, some_sessions = nil, nil, nil, nil
-- @end

-- `fields`: more of each lane than 'ahead:,', which comes first. Returns the values of all, behind three others.
local function look_at_sched(fields)
  if sched and not fields then return sched end
  local found = call_if_typed('HMGET', SCHED, 'tenants', 'interrupted', 'sessions', lane_fields(fields or 'ahead:,')) or {}
  some_tenants, some_interrupted, some_sessions = found[1], found[2], found[3]
  sched = found
  return found
end

local function may_be_ahead(lane, id)
  local last = look_at_sched()[3 + lane]
  return last and encode_id(id) <= last
end

-- SCHED has a record for each request whose run was interrupted, until its entry ends: '<how often it gave way> <run>
-- <bytes> <until> <worker>'. <run> and <bytes> tell of output that was kept. <until> and <worker> are there if it gave way:
-- until that time, epoch ms, it waits for this worker, which has it in its cache. SCHED also has the number of such entries,
-- so that it is rarely asked for one of them, and the bytes of all.
local function interrupted_field(lane, id) return 'interrupted:' .. entry_field(lane, id) end

local function interruptions(lane, id)
  look_at_sched()
  return some_interrupted and call('HGET', SCHED, interrupted_field(lane, id)) or ''
end

-- Output that is kept has a key for each run, and counts while the record of its request names the run.
local KEPT = {}

function KEPT.key(run) return cfg.prefix .. 'kept:' .. run end

-- The record of a request is about to change from `before` to `after`; '' for none. Deletes the output that `before` names if
-- `after` names another one, and keeps the sum of bytes.
function KEPT.change(before, after)
  local old, old_bytes = string.match(before, '^%d+ (%S+) (%d+)')
  local new, new_bytes = string.match(after, '^%d+ (%S+) (%d+)')
  -- @guard kept: what counts no more is deleted
  if old and old ~= new then redis.pcall('DEL', KEPT.key(old)) end
  local more = (tonumber(new_bytes) or 0) - (tonumber(old_bytes) or 0)
  -- @guard interrupted: the bytes of what is kept are known
  if more ~= 0 then call('HINCRBY', SCHED, 'kept_bytes', string.format('%.0f', more)) end
end

-- True while a request waits for another worker than this one, which can go on with it without reading it again.
local function waits_for_another(lane, id, worker)
  local ms, home = string.match(interruptions(lane, id), ' (%d+) (%S+)$')
  return home and home ~= worker and tonumber(ms) > now_ms()
end

local function forget_interruptions(lane, ids)
  look_at_sched()
  if not some_interrupted then return end
  local fields = {}
  for i, id in ipairs(ids) do
    fields[i] = interrupted_field(lane, id)
    KEPT.change(interruptions(lane, id), '')
  end
  local gone = call('HDEL', SCHED, unpack(fields))
  -- @guard interrupted: their number is kept
  if gone > 0 and call('HINCRBY', SCHED, 'interrupted', -gone) <= 0 then call('HDEL', SCHED, 'interrupted') end
end

local function ahead_field(lane, id) return 'enqueued:' .. entry_field(lane, id) end

-- Nil for an entry whose id tells when it was enqueued.
local function kept_enqueued_ms(lane, id)
  return may_be_ahead(lane, id) and tonumber(call('HGET', SCHED, ahead_field(lane, id)) or nil) or nil
end

local function id_ms(id) return tonumber(string.match(id, '^%d+')) end
local function enqueued_ms(lane, id) return kept_enqueued_ms(lane, id) or math.min(id_ms(id), now_ms()) end

-- Call it before an entry is made ready: the time behind its deadline and its rank must not change any more.
local function keep_enqueued_ms(lane, id)
  if id_ms(id) <= now_ms() or kept_enqueued_ms(lane, id) then return end
  call('HSET', SCHED, ahead_field(lane, id), string.format('%.0f', now_ms()))
  if may_be_ahead(lane, id) then return end
  sched[3 + lane] = encode_id(id)
  call('HSET', SCHED, 'ahead:' .. lane, sched[3 + lane])
end

-- Reads only what ordering needs, without a table of the fields, which is enough for most entries of a batch. Returns
-- bytes, deadline or nil, the given id or nil, the tenant or nil, `if_late` or nil, and the session or nil.
local function skim_entry(lane, id, fields)
  local bytes, given, deadline, ttl, tenant, if_late, session = 0
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    bytes = bytes + #name + #value
    if name == 'id' then given = value elseif name == 'deadline' then deadline = value elseif name == 'ttl' then ttl = value
    elseif name == 'tenant' then tenant = value ~= '' and value or nil elseif name == 'if_late' then if_late = value
    elseif name == 'session' then session = value ~= '' and value or nil end
  end
  deadline, ttl = milliseconds(deadline), milliseconds(ttl)
  return bytes, deadline or ttl and enqueued_ms(lane, id) + ttl, given, tenant, if_late, session
end

local function request_id_of(given, lane, id) return usable_name(given) or entry_name(lane, id) end
local function rank_of(lane, id, deadline) return deadline or enqueued_ms(lane, id) + cfg.patience_ms end

-- {id=request id, deadline=ms or nil, reply=name or nil, bytes=size, enqueued=ms, fields=as given, named=fields by name}
local function read_entry(lane, id, fields)
  local bytes, deadline, given = skim_entry(lane, id, fields)
  local by_name = {}
  for i = 1, #fields, 2 do by_name[fields[i]] = fields[i + 1] end
  return {
    id = request_id_of(given, lane, id),
    deadline = deadline,
    reply = usable_name(by_name.reply),
    bytes = bytes,
    enqueued = enqueued_ms(lane, id),
    fields = fields,
    named = by_name,
  }
end

local function streamed(entry) return entry.named.stream == '1' end   -- a client reads its tokens while they arrive

local function fetch_fields(lane, id)
  local entry = call('XRANGE', lane_key(lane), id, id)[1]
  return entry and entry[2]
end
