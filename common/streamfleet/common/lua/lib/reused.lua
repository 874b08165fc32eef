-- @include entry
-- An id that is used again: its record tells which request it stands for.
local function record_key(request_id) return cfg.prefix .. 'request:' .. request_id end
-- @policy reused
-- The record of an id names the entry that the id stands for. Returns that name if it is another request than this
-- one. `name`: of this entry; nil if it is not known. `mine`: its digest, '' if it is not known, or its parsed fields.
-- `life`: ms that the id is kept from here on, because its request ends now: a record without a result belongs to a
-- request that has not ended. Then a request by plain XADD with an id of its own gets its record. Without `life`
-- nothing is written.
local function other_request(request_id, name, reply, mine, life)
  local key = record_key(request_id)
  local record = life and redis.pcall('GETEX', key, 'PX', life)   -- refused while a cluster slot moves: it stays longer
  if not life then record = redis.pcall('GET', key) end
  if not name or mine == '' or type(record) == 'table' then return nil end
  -- Behind 32 digits, and before a blank: nearly all, which clients enqueued. A search takes three times as long.
  if record and string.sub(record, 34, 33 + #name) == name and string.byte(record, 34 + #name) == 32 then return nil end
  local tell_apart = make_reused()
  return tell_apart and tell_apart(request_id, record, name, reply, mine, life)
end
