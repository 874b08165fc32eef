-- What a tenant uses, by the fields of a hash; a field of which nothing is left goes.
local function give_back(key, field, bytes)
  local left = tonumber(redis.call('HGET', key, field)) or 0
  if left > bytes then
    redis.call('HINCRBY', key, field, string.format('%.0f', -bytes))
  else
    redis.call('HDEL', key, field)
  end
end
