-- @include enqueued
-- Parses an entry's fields, as far as ordering and finishing need them. Never raises, whatever was XADDed.
local NO_DEADLINE = 9e15

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
