-- @include keys
-- What an entry's fields say, as far as ordering and finishing need it. Never raises, whatever was XADDed.
local NO_DEADLINE = 9e15

-- Stream ids as sorted-set members whose byte order is id order: equal ranks stay first in, first out.
local function encode_id(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return string.char(64 + #ms) .. ms .. '-' .. string.char(64 + #seq) .. seq
end

-- Nil for one that was put there by hand and that a command would refuse halfway through: each part has 64 bits.
local function sound_id(ms, seq)
  if ms and #ms < 20 and #seq < 20 and not string.find(ms, '%D') and not string.find(seq, '%D') then return ms .. '-' .. seq end
  for _, part in ipairs({ms or '', seq or ''}) do
    if #part > 20 or #part == 20 and part > '18446744073709551615' or not string.find(part, '^%d+$') then return nil end
  end
  return ms .. '-' .. seq
end

local function decode_id(member) return sound_id(string.match(member, '^%u(%d+)%-%u(%d+)$')) end

-- Lane and stream id of what tries_field made; nil for anything else.
local function lane_and_id(field)
  local lane, ms, seq = string.match(field, '^([1-4])|(%d+)%-(%d+)$')
  local id = sound_id(ms, seq)
  return id and tonumber(lane), id
end

local function milliseconds(text)   -- digits only: tonumber alone would take nan, inf, 0x10 and 1e9
  if text and #text <= 16 and string.find(text, '^%d+$') then return math.min(tonumber(text), NO_DEADLINE) end
end

local function usable_name(text)    -- the rule of check_name in protocol.py
  if not text or #text <= 256 and string.find(text, '^[%w_%-]+$') then return text end   -- nearly all: hex, UUIDs
  if #text >= 1 and #text <= 256 and not string.find(text, '[^\33-\126]')
      and not string.find(text, '^%a+:%d+%-%d+$') then
    return text
  end
end

-- What ordering needs, without a table of the fields: most entries of a batch need no more. Returns bytes, rank, request
-- id, deadline or nil, enqueued (ms).
local function skim_entry(lane, id, fields)
  local bytes, given, deadline, ttl = 0
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    bytes = bytes + #name + #value
    if name == 'id' then given = value elseif name == 'deadline' then deadline = value elseif name == 'ttl' then ttl = value end
  end
  local enqueued = tonumber(string.match(id, '^%d+'))
  ttl = milliseconds(ttl)
  deadline = milliseconds(deadline) or (ttl and enqueued + ttl)
  return bytes, deadline or enqueued + cfg.patience_ms, usable_name(given) or entry_name(lane, id), deadline, enqueued
end

-- {id=request id, deadline=ms or nil, rank=score in the ready set, reply=name or nil, bytes=size, enqueued=ms,
--   named=fields by name}
local function read_entry(lane, id, fields)
  local bytes, rank, request_id, deadline, enqueued = skim_entry(lane, id, fields)
  local named = {}
  for i = 1, #fields, 2 do named[fields[i]] = fields[i + 1] end
  return {
    id = request_id,
    deadline = deadline,
    rank = rank,
    reply = usable_name(named.reply),
    bytes = bytes,
    enqueued = enqueued,
    named = named,
  }
end

-- Returns the entry's size.
local function make_ready(lane, id, fields)
  local bytes, rank = skim_entry(lane, id, fields)
  call('ZADD', ready_key(lane), string.format('%.0f', rank), encode_id(id))
  return bytes
end

local function fetch_fields(lane, id)
  local entry = call('XRANGE', lane_key(lane), id, id)[1]
  return entry and entry[2]
end
