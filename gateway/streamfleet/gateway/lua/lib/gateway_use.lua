-- Files of a tenant; each batch adds up to two, and their contents are in the store.
local MOST_FILES = 20000

-- Use of a tenant, in the fields of a hash: file_bytes; open, how many batches it has open; queued_bytes, the bytes of
-- their inputs; open:<id>, those of one of them. A field that falls to 0 is deleted.
local function used(key, field) return tonumber(redis.call('HGET', key, field)) or 0 end

local function give_back(key, field, bytes, left)
  if bytes <= 0 then return end   -- also if somebody deleted the key: Redis takes no -0
  if left > bytes then
    redis.call('HINCRBY', key, field, string.format('%.0f', -bytes))
  else
    redis.call('HDEL', key, field)
  end
end
