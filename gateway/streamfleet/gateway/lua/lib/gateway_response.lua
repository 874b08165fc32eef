-- @include gateway_use
-- Stored responses of a tenant. KEYS[1] is the response, a hash; KEYS[2] the responses of its tenant, a sorted set of
-- `<id> <bytes>` by their creation; KEYS[3] what its tenant uses, a hash; KEYS[4] contents that no file owns; KEYS[5]
-- responses that have not ended. ARGV[1] is its id.
local call = redis.call
local BASE = string.sub(KEYS[1], 1, -#ARGV[1] - 1)

-- An item of an output is found by its id, among those of one API key, with which the ids of its responses begin.
local function item_keys(id, items)
  local keys = {}
  for item in string.gmatch(items or '', '%S+') do keys[#keys + 1] = BASE .. string.match(id, '^[^-]*') .. '/' .. item end
  return keys
end

-- A text is in the record itself, or stored elsewhere: then it is `@<bytes> <name of the content>`.
local function let_go(texts)
  for _, text in ipairs(texts) do
    local name = string.match(text or '', '^@%d+ (.*)$')
    if name then call('ZADD', KEYS[4], 0, name) end
  end
end

local function forget(member)
  local id, bytes = string.match(member, '^(%S+) (%d+)$')
  local texts = call('HMGET', BASE .. id, 'input', 'response', 'output', 'items')
  call('DEL', BASE .. id, unpack(item_keys(id, texts[4])))   -- first: it needs no memory, and a full server then allows the rest too
  call('ZREM', KEYS[2], member)
  call('ZREM', KEYS[5], id)
  give_back(KEYS[3], 'response_bytes', tonumber(bytes), used(KEYS[3], 'response_bytes'))
  -- @guard gateway_response_delete: contents are let go
  let_go({texts[1] or '', texts[2] or '', texts[3] or ''})
end

local function full(most, most_bytes, more, bytes)
  return call('ZCARD', KEYS[2]) + more > most or used(KEYS[3], 'response_bytes') + bytes > most_bytes
end

-- Delete the oldest that have ended, until so many more with so many bytes fit. Returns nil then; 'again' if others have
-- to go after up to 100, which take some ms; '' if those that have not ended leave no room. They are stepped over, 100 at
-- once; 2,000 take 2 ms, and whoever is refused asks again and again.
local function make_room(most, most_bytes, oldest_ms, more, bytes)
  local at, is_full = 0, full(most, most_bytes, more, bytes)
  while at < 2000 do
    local piece, ids, before = call('ZRANGE', KEYS[2], at, at + 99, 'WITHSCORES'), {}, at
    for i = 1, #piece, 2 do ids[#ids + 1] = string.match(piece[i], '^%S+') end
    if not ids[1] then break end
    local open = call('ZMSCORE', KEYS[5], unpack(ids))
    for i = 1, #ids do
      if not is_full and tonumber(piece[2 * i]) > oldest_ms then return end
      local stays
      -- @guard gateway_response_add: what has not ended stays
      stays = open[i]
      if stays then at = at + 1 else forget(piece[2 * i - 1]) end
      is_full = is_full and (stays or full(most, most_bytes, more, bytes))
    end
    if at < before + #ids then return is_full and 'again' or nil end
  end
  if at > 0 then return is_full and '' or nil end
  -- @guard gateway_response_add: what expired counts no more
  call('HDEL', KEYS[3], 'response_bytes')   -- the set has expired
end

local function keep(created_ms, bytes, life_ms)
  call('ZADD', KEYS[2], created_ms, ARGV[1] .. ' ' .. bytes)
  -- @guard gateway_response_add: so does the list
  call('PEXPIRE', KEYS[2], life_ms)
  call('HINCRBY', KEYS[3], 'response_bytes', bytes)
end
