-- The record of an id, '<digest> <lane>:<stream id> <reply>', has digests of its request: 16 hexadecimal digits of its JSON,
-- if a client enqueued it, and then 16 of its bytes. protocol.py makes the same ones.

-- Returns true if a record is that of a request with this digest, and the entry that it names; nothing if it names none.
-- Clients' requests are compared as JSON, all others by their bytes.
local function same_request(record, digest)
  local known, entry = string.match(record, '^(%S+) (%a+:%d+%-%d+) ')
  if not known then return end
  if #known == 32 and #digest == 32 then return string.sub(known, 1, 16) == string.sub(digest, 1, 16), entry end
  return string.sub(known, -16) == string.sub(digest, -16), entry
end
