-- @include entry
-- @include same_request
-- An id that is used again: its record tells which request it stands for.
local function record_key(request_id) return cfg.prefix .. 'request:' .. request_id end

-- Digest of a request's bytes, or what is given if it is one. Of a long body its length, beginning and end: all of 4 MiB
-- would take 15 ms or more.
local function digest_of(entry)
  if type(entry) == 'string' then return entry end
  local body = entry.named.body or ''
  -- @guard reused: a long body is not read whole
  if #body > 65536 then body = #body .. ' ' .. string.sub(body, 1, 32768) .. string.sub(body, -32768) end
  return string.sub(redis.sha1hex((entry.named.endpoint or '') .. '\0' .. body), 1, 16)
end

-- The record of an id names the entry that the id stands for. Returns that name if it is another request than this one.
-- `name`: of this entry; nil if it is not known. `mine`: its digest, '' if it is not known, or its parsed fields. `life`: ms
-- that the id is kept from here on, because its request ends now: a record without a result belongs to a request that has
-- not ended. Then a request by plain XADD with an id of its own gets its record. Without `life` nothing is written.
local function other_request(request_id, name, reply, mine, life)
  local key = record_key(request_id)
  local record = life and redis.pcall('GETEX', key, 'PX', life)   -- refused while a cluster slot moves: it stays longer
  if not life then record = redis.pcall('GET', key) end
  if not name or mine == '' or type(record) == 'table' then return nil end
  if not record then
    -- @guard reused: what came by plain XADD is known by its body once it has ended
    if life and name ~= request_id then
      redis.pcall('SET', key, table.concat({digest_of(mine), name, reply or ''}, ' '), 'PX', life)
    end
    return nil
  end
  -- Behind 32 digits, and before a blank: of nearly all, which clients enqueued. Looking for it takes three times as long.
  if string.sub(record, 34, 33 + #name) == name and string.byte(record, 34 + #name) == 32 then return nil end
  local same, other = same_request(record, digest_of(mine))
  if same or not other or other == name then return nil end
  -- @guard reused: the other request has not ended, and its record stays
  if life then redis.pcall('PEXPIRE', key, cfg.record_ttl_ms) end
  return other
end
