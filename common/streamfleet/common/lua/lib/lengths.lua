-- @include entry
-- Length that a request asks for.
local function half_octave(tokens) return math.floor(2 * math.log(tokens + 1) / math.log(2)) end

-- Bytes of the body, and the limit of output that it asks for, as text, '' for none. A name inside a string of the body
-- has escaped quotes. Of a long body only both ends are read.
local function body_size(fields)
  local body = ''
  for i = 1, #fields, 2 do if fields[i] == 'body' then body = fields[i + 1] end end
  local part = #body <= 65536 and body or string.sub(body, 1, 8192) .. '\n' .. string.sub(body, -8192)
  local at = string.find(part, '"max_', 1, true)   -- much faster than a pattern
  while at do
    local limit = string.match(part, '^[%a_]*tokens"%s*:%s*(%d%d?%d?%d?%d?%d?%d?)', at + 1)
    if limit then return #body, limit end
    at = string.find(part, '"max_', at + 1, true)
  end
  return #body, ''
end
