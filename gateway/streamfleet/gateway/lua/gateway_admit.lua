-- @include bucket
-- Admit a caller of the HTTP gateway: look up its key, and check its limits.
-- KEYS: 1 all keys, a hash of SHA-256 to JSON record; 2 allowance of this key, a hash.
-- ARGV: 1 SHA-256 of the key, hex; 2 requests to count, 0 or 1; 3 and 4 default requests and tokens a minute if its
--   record has none, 0 for no limit; 5 epoch ms in place of the server's, or ''.
-- Returns code, record, requests left, ms until all are there again, the same of tokens, ms to wait: code 1 admitted; 0
--   there is no such key; 2 it has expired; 3 no request is left; 4 no token is left. -1 left if there is no limit.
local text = redis.call('HGET', KEYS[1], ARGV[1])
if not text then return {0} end
local readable, record = pcall(cjson.decode, text)
if not readable or type(record) ~= 'table' then return {0} end
local now = clock_ms(ARGV[5])
local ends = tonumber(record.expires_ms)
if ends and ends <= now then return {2, text} end

local function limit_of(name, default)
  local limit = record[name]
  if type(limit) ~= 'number' then limit = tonumber(default) end
  return math.max(0, math.floor(limit))
end

local requests, tokens = limit_of('requests_per_minute', ARGV[3]), limit_of('tokens_per_minute', ARGV[4])
local asked, left, full, tokens_left, tokens_full = tonumber(ARGV[2]), -1, 0, -1, 0
if requests > 0 then left = left_of(KEYS[2], 'requests', requests, now) end
if tokens > 0 then
  tokens_left = left_of(KEYS[2], 'tokens', tokens, now)
  tokens_full = until_ms(tokens_left, tokens, tokens)
end
local code, wait = 1, 0
if requests > 0 and left < asked then
  code, wait = 3, until_ms(left, asked, requests)
elseif asked > 0 and tokens > 0 and tokens_left < 1 then
  code, wait = 4, until_ms(tokens_left, 1, tokens)
elseif asked > 0 and requests > 0 then
  left = left - asked
  keep_left(KEYS[2], 'requests', left, requests, now)
end
if requests > 0 then full = until_ms(left, requests, requests) end
return {code, text, math.floor(left), full, math.floor(tokens_left), tokens_full, wait}
