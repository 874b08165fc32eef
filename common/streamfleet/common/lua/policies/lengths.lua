-- @include output_limits
-- Length that a request asks for.
-- Returns the bytes of the body, and as text the limit of output that the engine takes, '' for none: output_limit of
-- numbers.py, in Lua. Decoding takes long, so a body is first searched for the one field that names a limit. If that does not
-- tell, a short body is decoded; of a longer one no limit is known. Nor is it of one that is not searched: 64 KiB of escapes
-- take 2 ms.
local CHAT, COMPLETIONS = '/v1/chat/completions', '/v1/completions'
local MOST_DIGITS, LARGEST = 400, 300   -- digits of text that is read, and of a number that Lua reads
local MOST_DECODED, MOST_SEARCHED = 16384, 65536

local function limit_in(value)
  if value == true then value = 1 elseif value == false then value = 0 end
  if type(value) == 'string' and #value <= MOST_DIGITS then
    value = string.match(string.gsub(value, '(%d)_%f[%d]', '%1'), '^%s*([%d.eE+-]+)%s*$')
  elseif type(value) ~= 'number' then return '' end
  value = tonumber(value)
  if not value or not (value >= 0 and value < math.huge) then return '' end
  return string.format('%.0f', math.floor(math.min(math.max(1, value), MOST_TOKENS)))
end

local function limit_of(body, endpoint)
  endpoint = endpoint or body.messages ~= nil and CHAT or body.prompt ~= nil and COMPLETIONS or ''
  if not NAMES[endpoint] then return '0' end   -- it generates nothing
  for _, name in ipairs(NAMES[endpoint]) do
    if body[name] ~= nil and body[name] ~= cjson.null then return limit_in(body[name]) end
  end
  return endpoint == COMPLETIONS and body.max_tokens == nil and DEFAULT or ''
end

-- Nil where the body has to be decoded. The one field that names a limit is the body's own if what follows it closes one
-- object, at its end. A name inside a string has escaped quotes; one with escaped letters may be anywhere.
local function limit_at_once(body, endpoint)
  -- @guard lengths: a name may be written with escapes
  if string.find(body, '\\u00', 1, true) and string.find(body, '\\u00[2-7]') then return nil end
  local at = string.find(body, '"max_', 1, true)   -- much faster than a pattern
  if not at then return NAMES[endpoint] and limit_of({}, endpoint) end
  -- @guard lengths: of a name that is given twice, the last counts
  if string.find(body, '"max_', at + 5, true) then return nil end
  local name, limit, rest = string.match(body, '^(max_[%a_]-tokens)"%s*:%s*(%d+)%s*()[,}]', at + 1)
  if not name then return nil end
  if not string.find(body, '^[^%[%]{}]*}%s*$', rest) then
    local read = #body - rest < MOST_DECODED and pcall(cjson.decode, '{"":0' .. string.sub(body, rest))
    -- @guard lengths: a limit inside of another field is not the body's
    if not read then return nil end
  end
  if #limit > LARGEST then limit = MOST_TOKENS end
  if not endpoint and name == 'max_tokens' and not string.find(body, '"input"', 1, true) then return limit_in(limit) end
  return NAMES[endpoint] and limit_of({[name] = limit}, endpoint)
end

return function(fields)
  local body, endpoint = '', nil
  for i = 1, #fields, 2 do
    if fields[i] == 'body' then body = fields[i + 1] elseif fields[i] == 'endpoint' then endpoint = fields[i + 1] end
  end
  if endpoint == '' then endpoint = nil end
  if endpoint and not NAMES[endpoint] then return #body, '0' end
  local limit = #body <= MOST_SEARCHED and limit_at_once(body, endpoint)
  if limit then return #body, limit end
  local read, decoded = pcall(cjson.decode, #body <= MOST_DECODED and body or '')
  if not read or type(decoded) ~= 'table' then return #body, '' end
  return #body, limit_of(decoded, endpoint)
end
