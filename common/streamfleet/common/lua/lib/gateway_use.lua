-- What a tenant uses, by the fields of a hash; a field of which nothing is left goes. Read it before anything is written:
-- rules from before there was such a key refuse that, and then nothing is half done.
local function used(key, field) return tonumber(redis.call('HGET', key, field)) or 0 end

local function give_back(key, field, bytes, left)
  if bytes <= 0 then return end   -- also what was counted by no release: Redis takes no -0
  if left > bytes then
    redis.call('HINCRBY', key, field, string.format('%.0f', -bytes))
  else
    redis.call('HDEL', key, field)
  end
end
