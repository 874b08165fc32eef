-- @include reused
-- @include same_request
-- Tells requests of one id apart by their bytes. The arguments and the reply are those of `other_request`, behind the id
-- its record, which is false or does not name this entry.

-- Digest of a request's bytes, or what is given if it is one. Of a long body its length, beginning and end: all of 4 MiB
-- would take 15 ms or more.
local function digest_of(entry)
  if type(entry) == 'string' then return entry end
  local body = entry.named.body or ''
  -- @guard reused: a long body is not read whole
  if #body > 65536 then body = #body .. ' ' .. string.sub(body, 1, 32768) .. string.sub(body, -32768) end
  return string.sub(redis.sha1hex((entry.named.endpoint or '') .. '\0' .. body), 1, 16)
end

return function(request_id, record, name, reply, mine, life)
  if not record then
    -- @guard reused: what came by plain XADD is known by its body once it has ended
    if life and name ~= request_id then
      redis.pcall('SET', record_key(request_id), table.concat({digest_of(mine), name, reply or ''}, ' '), 'PX', life)
    end
    return nil
  end
  local same, other = same_request(record, digest_of(mine))
  if same or not other or other == name then return nil end
  -- @guard reused: the other request has not ended, and its record stays
  if life then redis.pcall('PEXPIRE', record_key(request_id), cfg.record_ttl_ms) end
  return other
end
